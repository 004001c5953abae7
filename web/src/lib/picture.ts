import type { Answer, Failure, Pair } from './api';
import { backend } from './backend';

/** The current image, loaded once per id. */
let kept: { id: string; image: Promise<HTMLImageElement> } | null = null;

export function picture(id: string): Promise<HTMLImageElement> {
  if (kept?.id !== id) kept = { id, image: load(backend.picture(id, 1024)) };
  return kept.image;
}

async function load(source: string): Promise<HTMLImageElement> {
  const image = new Image();
  image.src = source;
  await image.decode();
  return image;
}

/** The image, and the part of it that a model with this input shape gets. */
export interface Cropped {
  image: HTMLImageElement;
  part: Answer<'images/{image}/middle'>;
}

export async function cropped(id: string, [height, width]: Pair, [down, across]: Pair = [1, 1]): Promise<Cropped> {
  const query = `height=${height}&width=${width}&patch_height=${down}&patch_width=${across}`;
  const response = await backend.fetch(`./api/images/${encodeURIComponent(id)}/middle?${query}`);
  if (!response.ok) throw new Error(((await response.json()) as Failure).error);
  return { part: await response.json(), image: await picture(id) };
}

/** Draw that part into a box at the top left of the canvas. */
export function drawCropped(pen: CanvasRenderingContext2D, { image, part }: Cropped, width: number, height: number): void {
  const [wide, tall] = [image.naturalWidth, image.naturalHeight];
  pen.drawImage(image, part.left * wide, part.top * tall, part.width * wide, part.height * tall, 0, 0, width, height);
}
