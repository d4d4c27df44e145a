/**
 * Fields of the interface whose feature is not built yet. Asking for anything but the default is refused by name:
 * a field is never accepted and ignored. A feature that lands removes its line here.
 */
import { ApiError } from '../errors.ts';

interface NotBuilt {
  /** True for values that ask for nothing. */
  isDefault: (value: unknown) => boolean;
  /** The whole sentence, where the general one does not fit. */
  message?: (value: unknown) => string;
}

const empty = { isDefault: (value: unknown) => value === null || Object.keys(value as object).length === 0 };

const TEXT_ONLY: NotBuilt = {
  ...empty,
  message: () => 'This model takes text only: `mm_processor_kwargs` is not supported.',
};

export const NOT_BUILT: Readonly<Record<string, NotBuilt>> = {
  mm_processor_kwargs: TEXT_ONLY,
};

/** Throws for the first field that asks for what is not there. */
export function refuseNotBuilt(body: object): void {
  for (const [field, entry] of Object.entries(NOT_BUILT)) {
    const value = (body as Record<string, unknown>)[field];
    if (!Object.hasOwn(body, field) || entry.isDefault(value)) continue;
    const message = entry.message?.(value) ?? `\`${field}\` is not supported by this server yet.`;
    throw new ApiError('not_built', message, field);
  }
}
