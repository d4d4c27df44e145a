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
const UNTRUSTED_TEMPLATE: NotBuilt = {
  ...only(null),
  message: () =>
    'Chat template is passed with request, but --trust-request-chat-template is not set. ' +
    'Refused request with untrusted chat template.',
};

export const NOT_BUILT: Readonly<Record<string, NotBuilt>> = {
  response_format: RESPONSE_FORMAT,
  structured_outputs: empty,
  chat_template: UNTRUSTED_TEMPLATE,
  mm_processor_kwargs: empty,
  kv_transfer_params: only(null),
  engine_xargs: empty,
  vllm_xargs: empty,
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
