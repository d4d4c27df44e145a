/** What the native engine takes (native/src/model/spec.cc): refused here, where the file and the field have names. */
export const MAX_INTERMEDIATE = 2 ** 19;
export const MAX_HEADS = 1024;
/** Positions of a context and of a window. */
export const MAX_POSITIONS = 2 ** 24;
/** Query heads that share one head of keys and values. */
export const MAX_GROUP = 32;
