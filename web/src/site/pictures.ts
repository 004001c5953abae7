/** The images of an exported page: the bundled ones, and those that the visitor drops; they stay in the page. */
import type { Pair } from '../lib/api';
import { asset } from './assets';
import type { Values } from './values';

const MAX_PIXELS = 2 ** 25;
/** Pillow's weights of red, green and blue in grey, in 65536ths. */
const GREY = [19595, 38470, 7471];

export interface Picture {
  url: string;
  image: ImageBitmap;
}

export class Pictures {
  #kept = new Map<string, Picture>();

  has(name: string): boolean {
    return this.#kept.has(name);
  }

  get(name: string): Picture {
    const found = this.#kept.get(name);
    if (!found) throw new Error(`image ${name} is no longer stored; drop it on the page again`);
    return found;
  }

  async load(name: string): Promise<void> {
    const file = new Blob([await asset(`picture-${name}`)], { type: 'image/png' });
    this.#keep(name, file, await bitmap(file));
  }

  /** Decode an image and return its name, height and width. */
  async add(file: Blob): Promise<{ image: string; height: number; width: number }> {
    const decoded = await bitmap(file).catch(() => {
      throw new Error('the file is not an image that this browser can read; convert it to PNG or JPEG');
    });
    const { height, width } = decoded;
    if (height * width > MAX_PIXELS)
      throw new Error(`${height} × ${width} pixels are above ${MAX_PIXELS.toLocaleString('en')}; shrink the image first`);
    const image = `picture-${this.#kept.size}`;
    this.#keep(image, file, decoded);
    return { image, height, width };
  }

  #keep(name: string, file: Blob, image: ImageBitmap): void {
    this.#kept.set(name, { url: URL.createObjectURL(file), image });
  }
}

const bitmap = (file: Blob) => createImageBitmap(file, { colorSpaceConversion: 'none' });

/** A part of an image, given by its top, left, height and width in pixels, drawn at a size on white. */
export function drawn(image: ImageBitmap, [top, left, tall, wide]: number[], [height, width]: Pair): Uint8ClampedArray {
  const canvas = new OffscreenCanvas(width, height);
  const pen = canvas.getContext('2d', { willReadFrequently: true })!;
  pen.imageSmoothingQuality = 'high';
  pen.fillStyle = 'white';
  pen.fillRect(0, 0, width, height);
  pen.drawImage(image, left, top, wide, tall, 0, 0, width, height);
  return pen.getImageData(0, 0, width, height).data;
}

/** RGBA → (height, width, 3). */
export function colours(rgba: Uint8ClampedArray, [height, width]: Pair): Values {
  const data = new Uint8Array(height * width * 3);
  for (let i = 0; i < height * width; i++) for (let c = 0; c < 3; c++) data[3 * i + c] = rgba[4 * i + c];
  return { data, dims: [height, width, 3] };
}

/** The whole image as (1, channels, height, width), for a model of 1 or 3 channels. */
export function planes(image: ImageBitmap, channels: number): Values {
  const { height, width } = image;
  const rgba = drawn(image, [0, 0, height, width], [height, width]);
  const area = height * width;
  const data = new Uint8Array(channels * area);
  for (let i = 0; i < area; i++)
    if (channels === 1) data[i] = (GREY.reduce((sum, weight, c) => sum + weight * rgba[4 * i + c], 0) + 0x8000) >> 16;
    else for (let c = 0; c < 3; c++) data[c * area + i] = rgba[4 * i + c];
  return { data, dims: [1, channels, height, width] };
}

/** Crop (1, channels, H, W) to (height, width, channels) at a corner. */
export function cropped({ data, dims: [, channels, rows, columns] }: Values, [top, left]: Pair, [height, width]: Pair): Values {
  const part = new Uint8Array(height * width * channels);
  for (let y = 0; y < height; y++)
    for (let x = 0; x < width; x++)
      for (let c = 0; c < channels; c++)
        part[(y * width + x) * channels + c] = data[(c * rows + top + y) * columns + left + x] as number;
  return { data: part, dims: [height, width, channels] };
}
