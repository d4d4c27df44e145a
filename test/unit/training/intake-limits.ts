/** What tests of the intake allow of rows; the limits of groups are no matter there. */
export const ROW_LIMITS = {
  vocabSize: 9,
  maxRows: 9,
  maxRowBytes: 9999,
  maxGroupBytes: 0,
  maxFieldBytes: 0,
  maxTrajectories: 0,
  chatTemplate: null,
};
