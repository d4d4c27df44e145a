/** A body that does not fit, as the training endpoints tell it: what, where, and by which rule. */
export interface ValidationDetail {
  /** `body`, `query`, `path` or `header`, then names and indices. */
  loc: (string | number)[];
  msg: string;
  /** Machine-readable rule, such as `missing` or `string_type`. */
  type: string;
}

/** As clients get it: places are texts, indices of lists too. */
export interface ValidationBody {
  detail: (Omit<ValidationDetail, 'loc'> & { loc: string[] })[];
}

export class ValidationError extends Error {
  readonly details: ValidationDetail[];
  constructor(details: ValidationDetail[]) {
    super(details.map(({ loc, msg }) => `${loc.join('.')}: ${msg}`).join('; '));
    this.name = 'ValidationError';
    this.details = details;
  }
}

/** One violation. */
export function invalid(loc: (string | number)[], msg: string, type = 'value_error'): ValidationError {
  return new ValidationError([{ loc, msg, type }]);
}
