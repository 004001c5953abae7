/** Canvas pixels per CSS pixel: those of the screen, and more while a figure is exported. */
import { tick } from 'svelte';

class Density {
  now = $state(devicePixelRatio);

  /** Draw every canvas again with at least this many pixels, while `work` runs. */
  async raised<T>(least: number, work: () => T | Promise<T>): Promise<T> {
    this.now = Math.max(least, devicePixelRatio);
    try {
      await tick();
      return await work();
    } finally {
      this.now = devicePixelRatio;
    }
  }
}

export const density = new Density();
