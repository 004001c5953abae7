/** The thumbnails of a folder: sheets of a few hundred, got one after the other. */
import type { Pair, Schemas } from '../../lib/api';
import { backend } from '../../lib/backend';
import { readFrame } from '../../lib/frame';

type FolderMap = Schemas['FolderMap'];

export class Sheets {
  #pictures = $state.raw<(ImageBitmap | null)[]>([]);
  #map: FolderMap | null = null;
  #turn = 0;

  /** Get the sheets of a map, by their numbers; one that cannot be had is left out. */
  async load(map: FolderMap, sheet: (number: number) => Promise<Blob | null>): Promise<void> {
    const turn = ++this.#turn;
    this.#map = map;
    const count = Math.ceil(map.ids.length / map.per_sheet);
    this.#pictures = Array<null>(count).fill(null);
    for (let number = 0; number < count; number++) {
      const found = await sheet(number);
      const picture = found && (await createImageBitmap(found));
      if (turn !== this.#turn) return; // another map is shown by now
      this.#pictures = this.#pictures.with(number, picture);
    }
  }

  /** Draw an image around a point, as large as fits a square. */
  draw(pen: CanvasRenderingContext2D, place: number, [x, y]: Pair, side: number): void {
    const pictures = this.#pictures; // read first, so that whoever draws is told when a sheet comes
    const map = this.#map;
    const sheet = map && pictures[Math.floor(place / map.per_sheet)];
    if (!map || !sheet) return;
    const columns = Math.sqrt(map.per_sheet);
    const at = place % map.per_sheet;
    const [height, width] = thumbnailSize(map, place, map.side);
    const [tall, wide] = fitted(map.sizes[place], side);
    const [column, row] = [at % columns, Math.floor(at / columns)];
    pen.drawImage(sheet, column * map.side, row * map.side, width, height, x - wide / 2, y - tall / 2, wide, tall);
  }
}

/** Ask the studio for a sheet; `query` says of which map. */
export async function fetchSheet(query: string, number: number): Promise<Blob | null> {
  const response = await backend.fetch(`./api/folder/sheet?${query}&number=${number}`);
  if (!response.ok) return null;
  const { sheet } = readFrame<unknown>(await response.arrayBuffer()).arrays;
  return new Blob([sheet.bytes as Uint8Array<ArrayBuffer>], { type: 'image/jpeg' });
}

/** The height and width of an image that fits a square. */
export function fitted([height, width]: readonly number[], side: number): Pair {
  const scale = side / Math.max(height, width);
  return [height * scale, width * scale];
}

/** The size of a thumbnail on its sheet: src/vitrail/maps/thumbnails.py. */
function thumbnailSize(map: FolderMap, place: number, side: number): Pair {
  const [height, width] = map.sizes[place];
  const scale = Math.min(1, side / Math.max(height, width));
  return [Math.max(1, Math.round(scale * height)), Math.max(1, Math.round(scale * width))];
}
