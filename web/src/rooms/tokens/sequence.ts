/** Draw the tokens of a sequence: patches of the image, and prefix tokens. */
import type { Facts } from '../../lib/api';

export type SequenceFacts = Facts<'tokens/sequence'>;

export const GOLD = '#d99a1c';
export const LEAD = '#0b0b10';

export function asCanvas(pixels: ImageData): OffscreenCanvas {
  const canvas = new OffscreenCanvas(pixels.width, pixels.height);
  canvas.getContext('2d')!.putImageData(pixels, 0, 0);
  return canvas;
}

/** Draw one token: its patch, or a gold rectangle for a prefix token. */
export function drawToken(
  pen: CanvasRenderingContext2D,
  photo: OffscreenCanvas,
  facts: SequenceFacts,
  token: number,
  left: number,
  top: number,
  width: number,
  height: number,
): void {
  const box = facts.boxes[token - facts.prefix.length];
  if (box) pen.drawImage(photo, box[1], box[0], box[3], box[2], left, top, width, height);
  else {
    pen.fillStyle = GOLD;
    pen.fillRect(left, top, width, height);
  }
}
