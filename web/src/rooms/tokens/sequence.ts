/** Drawing what a sequence is made of: patches of the image, and the tokens that are none. */
export interface SequenceFacts {
  prefix: string[];
  grid: [number, number];
  image: [number, number];
  /** Of every patch: top, left, height, width in pixels. */
  boxes: [number, number, number, number][];
  cells: [number, number, number, number][];
  /** Of every cell of the grid, the token that covers it. */
  owner: number[];
  /** The token that is looked at unless another is chosen. */
  middle: number;
  count: number;
  width: number;
  cut: string;
  added: string;
}

export interface Token {
  token: number;
  name: string;
  row: number | null;
  column: number | null;
  place: string;
  values: number[];
  projected: number[];
  position: number[] | null;
  vector: number[];
  length: number;
}

export const GOLD = '#d99a1c';
export const LEAD = '#0b0b10';

export function asCanvas(pixels: ImageData): OffscreenCanvas {
  const canvas = new OffscreenCanvas(pixels.width, pixels.height);
  canvas.getContext('2d')!.putImageData(pixels, 0, 0);
  return canvas;
}

/** One token at a place of a canvas: its patch, or a pane of gold. */
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
