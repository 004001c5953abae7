/** The one way to the API: the studio's server, or the code inside an exported page. */
export interface Backend {
  /** Answer a request as `fetch` does; the address begins with "./api/". */
  fetch(address: string, options?: RequestInit): Promise<Response>;
  /** The address of an image for an element, with a longer side of at most `side` pixels where that can be asked for. */
  picture(image: string, side: number): string;
  /** Why a room is not here; empty if it is. */
  without(room: string): string;
  /** The room's last line, which says where its numbers come from. */
  readonly promise: string;
  /** What a page waits for before its first answer. */
  readonly starting: string;
}

const server: Backend = {
  fetch: (address, options) => fetch(address, options),
  picture: (image, side) => `./api/images/${encodeURIComponent(image)}/pixels?side=${side}`,
  without: () => '',
  promise: 'nothing leaves this machine',
  starting: '',
};

export let backend: Backend = server;

export function replaceBackend(other: Backend): void {
  backend = other;
}
