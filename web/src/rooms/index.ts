/** All rooms. */
import type { Component } from 'svelte';
import Attention from './attention/Attention.svelte';
import Decide from './decide/Decide.svelte';
import Dense from './dense/Dense.svelte';
import Folder from './folder/Folder.svelte';
import Match from './match/Match.svelte';
import Memory from './memory/Memory.svelte';
import Models from './models/Models.svelte';
import Patch from './patch/Patch.svelte';
import Positions from './positions/Positions.svelte';
import Projection from './projection/Projection.svelte';
import Tokens from './tokens/Tokens.svelte';
import Transfer from './transfer/Transfer.svelte';
import Walk from './walk/Walk.svelte';

export interface Room {
  /** Its name in the address and in the API. */
  id: string;
  /** Its place in the navigation, which also selects its colour. */
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
    lead: 'The patch size sets the number of tokens, and with it attention, FLOPs and memory. Drag a slider to see how.',
    command: 'laws',
    component: Patch,
  },
  {
    id: 'projection',
    number: 2,
    title: 'Projection',
    lead: 'One matrix turns a patch into a token. See its filters, how they respond to your image, and what they lose.',
    command: 'look --what filters',
    component: Projection,
  },
  {
    id: 'tokens',
    number: 3,
    title: 'Tokens',
    lead: 'Your image as the encoder reads it: a sequence of vectors. Point at a patch to see its token.',
    command: 'look --what patches',
    component: Tokens,
  },
  {
    id: 'positions',
    number: 4,
    title: 'Positions',
    lead: 'Without positions, attention treats an image as a set of patches. Compare the kinds of position embedding.',
    command: 'look --what positions',
    component: Positions,
  },
  {
    id: 'transfer',
    number: 5,
    title: 'Resolution transfer',
    lead: 'Positions tie a trained model to its grid, and filters to its patch size. Resize both, and see what is lost.',
    command: 'simulate',
    component: Transfer,
  },
  {
    id: 'memory',
    number: 6,
    title: 'Memory',
    lead: 'The memory of a step by component, whether it fits your card, and what to change first if it does not.',
    command: 'plan',
    component: Memory,
  },
  {
    id: 'models',
    number: 7,
    title: 'Models',
    lead: 'Published models side by side: parameters, FLOPs, memory, and reported accuracy with its source.',
    command: 'compare',
    component: Models,
  },
  {
    id: 'attention',
    number: 8,
    title: 'Attention',
    lead: 'The attention of every head at once. Point at a patch of your image to see where it attends.',
    command: 'look',
    component: Attention,
  },
  {
    id: 'decide',
    number: 9,
    title: 'Decide',
    lead: 'Describe your task, images and card. Get ranked models, the reasons, and what would change the ranking.',
    command: 'advise',
    component: Decide,
  },
  {
    id: 'walk',
    number: 10,
    title: 'Walk through',
    lead: 'Follow one patch of your image from pixels to logits, with the actual numbers.',
    command: 'look',
    component: Walk,
  },
  {
    id: 'match',
    number: 11,
    title: 'Match',
    lead: 'Two images: point at a patch to see where its token finds its kin, and why the images are alike.',
    command: 'match',
    component: Match,
  },
  {
    id: 'dense',
    number: 12,
    title: 'Dense',
    lead: 'Features at every pixel: colours that show what the model takes for alike, and how similar every place is to a point.',
    command: 'dense',
    component: Dense,
  },
  {
    id: 'folder',
    number: 13,
    title: 'Folder',
    lead: 'A folder as a map: similar images side by side. Search it by an image, and find duplicates and doubtful labels.',
    command: 'atlas',
    component: Folder,
  },
];

export const rooms = built.toSorted((a, b) => a.number - b.number);
