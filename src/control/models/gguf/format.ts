/** The numbers of the GGUF format (versions 2 and 3): value types of metadata and the types that tensors are stored in. */

export const GGUF_MAGIC = 'GGUF';
export const GGUF_VERSION = 3;
export const DEFAULT_ALIGNMENT = 32;
export const ALIGNMENT_KEY = 'general.alignment';

/** What a metadata value may be. */
export const VALUE_TYPES = {
  uint8: 0,
  int8: 1,
  uint16: 2,
  int16: 3,
  uint32: 4,
  int32: 5,
  float32: 6,
  bool: 7,
  string: 8,
  array: 9,
  uint64: 10,
  int64: 11,
  float64: 12,
} as const;

export type ValueType = keyof typeof VALUE_TYPES;

/** Least bytes that one value takes: a string may be empty, but has its length. */
export const VALUE_BYTES: Readonly<Record<ValueType, number>> = {
  uint8: 1,
  int8: 1,
  uint16: 2,
  int16: 2,
  uint32: 4,
  int32: 4,
  float32: 4,
  bool: 1,
  string: 8,
  array: 12,
  uint64: 8,
  int64: 8,
  float64: 8,
};

/** Elements are stored in blocks of `elements` taking `bytes`; a row is a whole number of blocks. */
export interface StorageType {
  id: number;
  elements: number;
  bytes: number;
}

/** The types that we read. */
export const STORAGE_TYPES = {
  F32: { id: 0, elements: 1, bytes: 4 },
  F16: { id: 1, elements: 1, bytes: 2 },
  BF16: { id: 30, elements: 1, bytes: 2 },
  /** f16 scale, 16 bytes of nibbles (element i low, i + 16 high), value = scale * (nibble - 8). */
  Q4_0: { id: 2, elements: 32, bytes: 18 },
  /** f16 scale, 32 signed bytes. */
  Q8_0: { id: 8, elements: 32, bytes: 34 },
  /** f16 scale and f16 minimum, 12 bytes of 6-bit scales and minima of 8 groups, 128 bytes of nibbles. */
  Q4_K: { id: 12, elements: 256, bytes: 144 },
  /** 128 bytes of low nibbles, 64 of high pairs of bits, 16 signed scales of groups of 16, f16 scale. */
  Q6_K: { id: 14, elements: 256, bytes: 210 },
} as const satisfies Record<string, StorageType>;

export type StorageName = keyof typeof STORAGE_TYPES;

/** Types that exist and that we do not read, for the message that refuses them. */
const OTHER_TYPES: Readonly<Record<number, string>> = {
  3: 'Q4_1', 6: 'Q5_0', 7: 'Q5_1', 9: 'Q8_1', 10: 'Q2_K', 11: 'Q3_K', 13: 'Q5_K', 15: 'Q8_K', 16: 'IQ2_XXS', 17: 'IQ2_XS',
  18: 'IQ3_XXS', 19: 'IQ1_S', 20: 'IQ4_NL', 21: 'IQ3_S', 22: 'IQ2_S', 23: 'IQ4_XS', 24: 'I8', 25: 'I16', 26: 'I32', 27: 'I64',
  28: 'F64', 29: 'IQ1_M', 34: 'TQ1_0', 35: 'TQ2_0', 39: 'MXFP4', 40: 'NVFP4',
};

const NAMES = new Map(Object.entries(STORAGE_TYPES).map(([name, { id }]) => [id as number, name as StorageName]));
const VALUE_NAMES = new Map(Object.entries(VALUE_TYPES).map(([name, id]) => [id as number, name as ValueType]));

export function storageName(id: number): StorageName | undefined {
  return NAMES.get(id);
}

export function valueType(id: number): ValueType | undefined {
  return VALUE_NAMES.get(id);
}

/** The name of a type that we do not read, or its number. */
export function otherStorage(id: number): string {
  return OTHER_TYPES[id] ?? `number ${id}, which is none of the format's`;
}

/** Bytes of a tensor whose rows are whole blocks. */
export function storedBytes(name: StorageName, elements: number): number {
  const type: StorageType = STORAGE_TYPES[name];
  return (elements / type.elements) * type.bytes;
}
