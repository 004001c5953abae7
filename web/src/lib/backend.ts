/** The one way to the API: the studio's server, or the code inside an exported page. */
export interface Backend {
  /** Answer a request as `fetch` does; the address begins with "./api/". */
  fetch(address: string, options?: RequestInit): Promise<Response>;
  /** The address of an image for an element; its longer side has at most `side` pixels, if the backend can shrink it. */
  picture(image: string, side: number): string;
  /** Whether this is an exported page, in which Python and the models run. */
  readonly exported: boolean;
  /** What the backend says of a view that it does not have, with the command that has it. */
  readonly elsewhere: string;
  /** What the first answer waits for; empty once it came. */
  readonly starting: string;
}

const server: Backend = {
  fetch: (address, options) => fetch(address, options),
  picture: (image, side) => `./api/images/${encodeURIComponent(image)}/pixels?side=${side}`,
  exported: false,
  elsewhere: '',
  starting: '',
};

export let backend: Backend = server;

export function replaceBackend(other: Backend): void {
  backend = other;
}
