/** A folder of the user's images, of which the studio measures a sample. */
import type { Failure, Schemas } from './api';
import { backend } from './backend';
import { studio } from './state.svelte';

const IMAGE = /\.(jpe?g|png|webp|avif|gif|bmp|tiff?|p[pgbn]m)$/i;

class Folder {
  /** How far the upload is, or what it ended with. */
  status = $state('');
  error = $state('');
  /** The names of the images that were sent, in their order. */
  sent = $state.raw<string[]>([]);

  /** Send a sample of the images, and open the room that measures them, unless this one does. */
  async send(name: string, files: File[]): Promise<void> {
    const images = files.filter((file) => IMAGE.test(file.name) && !file.name.startsWith('.'));
    this.error = this.status = '';
    if (images.length === 0) {
      this.error = `${name} has no images; choose a folder with photographs`;
      return;
    }
    try {
      const begun = await post('./api/folders');
      const sample = evenly(images, begun.most).filter(({ size }) => size <= studio.catalogue.max_bytes);
      for (const [index, file] of sample.entries()) {
        this.status = `Reading ${index + 1} of ${sample.length} images of ${name}…`;
        await post(`./api/folders/${begun.folder}`, file);
      }
      this.sent = sample.map((file) => file.webkitRelativePath || file.name);
      this.status = `${name}: ${sample.length} of ${images.length} images`;
      const { minimum, maximum } = studio.control('data_size');
      const data_size = Math.min(Math.max(images.length, minimum ?? 1), maximum ?? Infinity);
      studio.go(studio.room === 'projection' ? 'projection' : 'decide', { folder: begun.folder, data_size });
    } catch (error) {
      this.status = '';
      this.error = (error as Error).message;
    }
  }
}

export const folder = new Folder();

async function post(address: string, body?: File): Promise<Schemas['Dropped']> {
  const headers = { 'Content-Type': 'application/octet-stream' };
  const response = await backend.fetch(address, { method: 'POST', headers, body });
  if (!response.ok) throw new Error(((await response.json()) as Failure).error);
  return response.json();
}

/** At most `most` items, evenly spaced over the list. */
export function evenly<T>(items: T[], most: number): T[] {
  if (items.length <= most) return items;
  return Array.from({ length: most }, (_, index) => items[Math.floor((index * items.length) / most)]);
}

/** The directory that was dropped, if one was. */
export function droppedFolder(event: DragEvent): FileSystemDirectoryEntry | null {
  const entry = event.dataTransfer?.items[0]?.webkitGetAsEntry();
  return entry?.isDirectory ? (entry as FileSystemDirectoryEntry) : null;
}

/** All files below a directory, in the order of their paths. */
export async function filesBelow(directory: FileSystemDirectoryEntry): Promise<File[]> {
  const reader = directory.createReader();
  const entries: FileSystemEntry[] = [];
  for (;;) {
    const some = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (some.length === 0) break; // a reader gives a hundred at a time
    entries.push(...some);
  }
  entries.sort((a, b) => (a.name < b.name ? -1 : 1));
  const found: File[] = [];
  for (const entry of entries) {
    if (entry.isDirectory) found.push(...(await filesBelow(entry as FileSystemDirectoryEntry)));
    else found.push(await new Promise<File>((resolve, reject) => (entry as FileSystemFileEntry).file(resolve, reject)));
  }
  return found;
}
