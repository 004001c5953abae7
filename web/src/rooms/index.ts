/** The rooms, in the window's order. A room that is not built is not here. */
import type { Component } from 'svelte';
import Attention from './attention/Attention.svelte';
import Decide from './decide/Decide.svelte';
import Memory from './memory/Memory.svelte';
import Models from './models/Models.svelte';
import Patch from './patch/Patch.svelte';
import Positions from './positions/Positions.svelte';
import Projection from './projection/Projection.svelte';
import Tokens from './tokens/Tokens.svelte';
import Transfer from './transfer/Transfer.svelte';
import Walk from './walk/Walk.svelte';

export interface Room {
  /** Its name in the address and on the server. */
  id: string;
  /** Its place in the window, which is its colour too. */
  number: number;
  title: string;
  lead: string;
  /** The command that gives the same numbers. */
  command: string;
  component: Component;
}

const built: Room[] = [
  {
    id: 'patch',
    number: 1,
    title: 'Patch size',
    lead: 'One choice decides how many tokens there are, and everything else follows from that. Drag, and watch it follow.',
    command: 'laws',
    component: Patch,
  },
  {
    id: 'projection',
    number: 2,
    title: 'Projection',
    lead: 'One matrix turns a patch into a token. See what it looks for, where your image has it, and what can pass.',
    command: 'look --what filters',
    component: Projection,
  },
  {
    id: 'tokens',
    number: 3,
    title: 'Tokens',
    lead: 'Your image as the encoder reads it: a line of vectors, numbered. Point at a patch and follow it there.',
    command: 'look --what patches',
    component: Tokens,
  },
  {
    id: 'positions',
    number: 4,
    title: 'Positions',
    lead: 'To attention an image is a bag of patches until something tells it where each one lies. See what each way of telling does.',
    command: 'look --what positions',
    component: Positions,
  },
  {
    id: 'transfer',
    number: 5,
    title: 'Resolution transfer',
    lead: 'A trained model is tied to its grid by its positions and to its patch by its filters. Carry both elsewhere, and see what arrives.',
    command: 'simulate',
    component: Transfer,
  },
  {
    id: 'memory',
    number: 6,
    title: 'Memory',
    lead: 'Where the bytes of a step go, whether they fit your card, and what to change first when they do not.',
    command: 'plan',
    component: Memory,
  },
  {
    id: 'models',
    number: 7,
    title: 'Models',
    lead: 'Known models side by side: what they hold, what they cost, and what was published of them, with its source.',
    command: 'compare',
    component: Models,
  },
  {
    id: 'attention',
    number: 8,
    title: 'Attention',
    lead: 'Where every token looks, in every head at once. Point at a patch of your image and watch where it turns.',
    command: 'look',
    component: Attention,
  },
  {
    id: 'decide',
    number: 9,
    title: 'Decide',
    lead: 'Say what you have: the work, the images, the card. Get ranked answers, the reasons, and what would change them.',
    command: 'advise',
    component: Decide,
  },
  {
    id: 'walk',
    number: 10,
    title: 'Walk through',
    lead: 'One scroll from pixels to logits, with the real numbers of your image. Follow one patch all the way.',
    command: 'look',
    component: Walk,
  },
];

export const rooms = built.toSorted((a, b) => a.number - b.number);
