/** The guided tour: twelve steps from pixels to a label, each with one sentence and one thing to do. */
import type { Component } from 'svelte';
import type { Value, Values } from '../lib/address';
import Lift from './Lift.svelte';
import Lines from './Lines.svelte';
import Split from './Split.svelte';
import Stretch from './Stretch.svelte';

export interface Step {
  title: string;
  says: string;
  /** The thing to do. */
  task: string;
  room: string;
  /** The element that is lit, as a selector. */
  at: string;
  /** Values on entering the step. */
  values?: Values;
  /** The control that the task changes; the task is done when its value differs from the one on entering. */
  changes?: string;
  scene?: Component;
}

const panel = (name: string) => `[data-panel="${name}"]`;

export const steps: readonly Step[] = [
  {
    title: 'A picture is numbers',
    says: 'A model does not see a cat: it gets a grid of pixels, three numbers each, for red, green and blue.',
    task: 'Drop a photograph of your own on the picture, or choose the other one.',
    room: 'patch',
    at: '.well',
    values: { model: 'B/16', height: 224, width: 224, patch_height: 16, patch_width: 16 },
    changes: 'image',
  },
  {
    title: 'Cut into patches',
    says: 'A Vision Transformer cuts the picture into squares, lifts them off and reads them as a line, like words.',
    task: 'Drag the patch to 32 pixels and watch the squares grow.',
    room: 'patch',
    at: panel('patch-grid'),
    changes: 'patch_height',
    scene: Lift,
  },
  {
    title: 'Why 197?',
    says: '224 ÷ 16 is 14, so there are 14 × 14 = 196 patches; one more token, CLS, collects the answer: 197.',
    task: 'Change the image width and predict the number of tokens before you look.',
    room: 'patch',
    at: panel('patch-grid'),
    values: { height: 224, width: 224, patch_height: 16, patch_width: 16 },
    changes: 'width',
  },
  {
    title: 'Why quadratic?',
    says: 'Every token looks at every token: twice the side gives four times the tokens and sixteen times the pairs.',
    task: 'Double the image to 448 pixels, and read “attention elements” again.',
    room: 'patch',
    at: panel('patch-grid'),
    values: { height: 224, width: 224, patch_height: 16, patch_width: 16 },
    changes: 'height',
  },
  {
    title: 'One matrix',
    says: 'Each patch, 16 × 16 × 3 = 768 numbers, is multiplied by one learned matrix; its rows are filters to look at.',
    task: 'Choose another filter and see where your picture answers to it.',
    room: 'projection',
    at: panel('filters'),
    changes: 'filter',
  },
  {
    title: 'The line of tokens',
    says: 'The encoder never sees the grid: it reads this line of vectors, one for each patch.',
    task: 'Point at a patch, or move along the line with the arrow keys.',
    room: 'tokens',
    at: panel('sequence'),
    changes: 'token',
  },
  {
    title: 'Fewer tokens where little happens',
    says: 'Patches need not be equal: a square with detail splits in four, and a plain one stays whole.',
    task: 'Raise the threshold and see how many tokens are saved.',
    room: 'tokens',
    at: panel('adaptive'),
    changes: 'threshold',
    scene: Split,
  },
  {
    title: 'What does position do?',
    says: 'A line in another order would mean the same to attention, so every token gets a vector that says its place.',
    task: 'Choose another kind of position and compare its map.',
    room: 'positions',
    at: '[data-panel^="positions-"]',
    changes: 'kind',
  },
  {
    title: 'Tokens ask each other',
    says: 'A token compares its query with the keys of all others, and takes most from those that match.',
    task: 'Click a patch of the picture to make it the one that asks.',
    room: 'attention',
    at: panel('attention-head'),
    changes: 'token',
    scene: Lines,
  },
  {
    title: 'What is lost at another resolution?',
    says: 'A larger picture has a larger grid, and the table of learned positions must be stretched to it.',
    task: 'Change the new grid and watch the error of each method.',
    room: 'transfer',
    at: panel('transfer-maps'),
    changes: 'new_rows',
    scene: Stretch,
  },
  {
    title: 'What does it cost?',
    says: 'In training, most of the memory is what each layer keeps for the way back, and it grows with the batch.',
    task: 'Raise the batch until the step does not fit the card.',
    room: 'memory',
    at: panel('memory'),
    changes: 'batch',
  },
  {
    title: 'From the last token to a word',
    says: 'After the last block, the CLS token is multiplied by one more matrix, and the largest of its numbers is the answer.',
    task: 'Read what the model says to your picture, and follow one number back through the blocks.',
    room: 'walk',
    at: panel('walk-prediction'),
  },
];

/** What a visitor can answer at the end. */
export const answers: [question: string, answer: string][] = [
  ['Why 197 tokens?', '(224 ÷ 16)² = 196 patches, and one CLS token.'],
  ['Why is attention quadratic?', 'N tokens make N² pairs; doubling the side of the image makes sixteen times as many.'],
  ['What does position do?', 'Attention treats tokens as a set; positions tell it where each patch was.'],
  [
    'What is lost at another resolution?',
    'Learned positions belong to one grid and must be resampled, which blurs their finest differences.',
  ],
];

export const isDone = (step: Step, now: Values, before: Value | undefined): boolean =>
  step.changes !== undefined && before !== undefined && now[step.changes] !== before;
