/** What the native engine takes (native/src/model/spec.cc): refused here, where the file and the field have names. */
export const MAX_INTERMEDIATE = 2 ** 19;
export const MAX_HEADS = 1024;
/** Positions of a context and of a window. */
export const MAX_POSITIONS = 2 ** 24;
/** Experts of all layers together: each has three tensors, of which the engine takes 100,000. */
export const MAX_EXPERTS = 30_000;
/** Experts that a token goes to. */
export const MAX_USED_EXPERTS = 256;
/** Experts of a layer. */
export const MAX_LAYER_EXPERTS = 4096;
/** Query heads that share one head of keys and values. */
export const MAX_GROUP = 32;
