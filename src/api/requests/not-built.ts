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

const only = (...values: unknown[]) => ({ isDefault: (value: unknown) => values.includes(value) });
const empty = { isDefault: (value: unknown) => value === null || Object.keys(value as object).length === 0 };

const RESPONSE_FORMAT: NotBuilt = {
  isDefault: (value) => value === null || (value as { type?: unknown }).type === 'text',
};
const TEXT_ONLY: NotBuilt = {
  ...empty,
  message: () => 'This model takes text only: `mm_processor_kwargs` is not supported.',
};
const EXTENSION_ARGUMENTS: NotBuilt = {
  ...empty,
  message: (value) => {
    const names = Object.keys(value as object).slice(0, 10);
    const shown = names.map((name) => JSON.stringify(name.slice(0, 40)));
    return `No extension of this server takes these arguments: ${shown.join(', ')}.`;
  },
};

export const NOT_BUILT: Readonly<Record<string, NotBuilt>> = {
  response_format: RESPONSE_FORMAT,
  structured_outputs: empty,
  mm_processor_kwargs: TEXT_ONLY,
  kv_transfer_params: only(null),
  engine_xargs: EXTENSION_ARGUMENTS,
  vllm_xargs: EXTENSION_ARGUMENTS,
  suffix: only(null, ''),
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
