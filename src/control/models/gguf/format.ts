/** The numbers of the GGUF format (versions 2 and 3): value types of metadata and the types that tensors are stored in. */

export const GGUF_MAGIC = 'GGUF';
/** What writers write. */
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

/** The types that the native engine reads. */
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

/** Types that exist and that only other engines read. */
const OTHER_TYPES = {
  Q4_1: { id: 3, elements: 32, bytes: 20 },
  Q5_0: { id: 6, elements: 32, bytes: 22 },
  Q5_1: { id: 7, elements: 32, bytes: 24 },
  Q2_K: { id: 10, elements: 256, bytes: 84 },
  Q3_K: { id: 11, elements: 256, bytes: 110 },
  Q5_K: { id: 13, elements: 256, bytes: 176 },
  Q8_K: { id: 15, elements: 256, bytes: 292 },
  IQ2_XXS: { id: 16, elements: 256, bytes: 66 },
  IQ2_XS: { id: 17, elements: 256, bytes: 74 },
  IQ3_XXS: { id: 18, elements: 256, bytes: 98 },
  IQ1_S: { id: 19, elements: 256, bytes: 50 },
  IQ4_NL: { id: 20, elements: 32, bytes: 18 },
  IQ3_S: { id: 21, elements: 256, bytes: 110 },
  IQ2_S: { id: 22, elements: 256, bytes: 82 },
  IQ4_XS: { id: 23, elements: 256, bytes: 136 },
  I8: { id: 24, elements: 1, bytes: 1 },
  I16: { id: 25, elements: 1, bytes: 2 },
  I32: { id: 26, elements: 1, bytes: 4 },
  I64: { id: 27, elements: 1, bytes: 8 },
  F64: { id: 28, elements: 1, bytes: 8 },
  IQ1_M: { id: 29, elements: 256, bytes: 56 },
  TQ1_0: { id: 34, elements: 256, bytes: 54 },
  TQ2_0: { id: 35, elements: 256, bytes: 66 },
  MXFP4: { id: 39, elements: 32, bytes: 17 },
  NVFP4: { id: 40, elements: 64, bytes: 36 },
} as const satisfies Record<string, StorageType>;

export type StoredName = StorageName | keyof typeof OTHER_TYPES;

export const STORED_TYPES: Readonly<Record<StoredName, StorageType>> = { ...STORAGE_TYPES, ...OTHER_TYPES };

const NAMES = new Map(Object.entries(STORED_TYPES).map(([name, { id }]) => [id, name as StoredName]));
const VALUE_NAMES = new Map(Object.entries(VALUE_TYPES).map(([name, id]) => [id as number, name as ValueType]));

export function storedName(id: number): StoredName | undefined {
  return NAMES.get(id);
}

export function isReadHere(name: StoredName): name is StorageName {
  return Object.hasOwn(STORAGE_TYPES, name);
}

export function valueType(id: number): ValueType | undefined {
  return VALUE_NAMES.get(id);
}

/** Bytes of a tensor whose rows are whole blocks. */
export function storedBytes(name: StoredName, elements: number): number {
  const type = STORED_TYPES[name];
  return (elements / type.elements) * type.bytes;
}
