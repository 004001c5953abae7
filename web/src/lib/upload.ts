/** Send files to the studio. */
import type { Failure, Schemas } from './api';
import { backend } from './backend';
import { bytes } from './format';
import { studio } from './state.svelte';

/** Send an image; return its id, or why it was not taken. */
export async function sendImage(file: File): Promise<{ image: string; error: string }> {
  const most = studio.catalogue.max_bytes;
  if (file.size > most)
    return { image: '', error: `${file.name} has ${bytes(file.size)}, and the page takes ${bytes(most)}; shrink it first` };
  try {
    const response = await post('./api/images', file);
    const answer = (await response.json()) as Schemas['Picture'] & Failure;
    return response.ok ? { image: answer.image, error: '' } : { image: '', error: answer.error };
  } catch {
    return { image: '', error: SILENT };
  }
}

export const SILENT = 'The upload failed: the studio does not answer';

export const post = (address: string, body: File): Promise<Response> =>
  backend.fetch(address, { method: 'POST', headers: { 'Content-Type': 'application/octet-stream' }, body });
