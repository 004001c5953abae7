/** Arrays of numbers, as graphs take and return them. */
export interface Values {
  data: Float32Array<ArrayBuffer> | Uint8Array<ArrayBuffer> | Int32Array<ArrayBuffer> | BigInt64Array<ArrayBuffer>;
  dims: number[];
}
export type Outputs = Record<string, Values>;

/** The bytes of values, in row-major order. */
export const bytesOf = ({ data }: Values) => new Uint8Array(data.buffer, data.byteOffset, data.byteLength);

/** One row of the last axis but one, which is kept: (…, Q, n) → (…, 1, n). */
export function rowOf({ data, dims }: Values, row: number): Values {
  const [rows, width] = dims.slice(-2);
  const before = dims.slice(0, -2).reduce((product, side) => product * side, 1);
  const chosen = data.slice(0, before * width) as Uint8Array<ArrayBuffer>; // of any of the types
  for (let index = 0; index < before; index++) {
    const start = (index * rows + row) * width;
    chosen.set(data.subarray(start, start + width) as Uint8Array, index * width);
  }
  return { data: chosen, dims: [...dims.slice(0, -2), 1, width] };
}
