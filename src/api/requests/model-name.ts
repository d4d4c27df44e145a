import { ApiError } from '../errors.ts';

/** null and '' mean the base model. */
export function requireModel(name: string | null | undefined, served: string[]): void {
  if (name === undefined || name === null || name === '' || served.includes(name)) return;
  const shown = name.length > 256 ? `${[...name.slice(0, 512)].slice(0, 256).join('')}…` : name;
  throw new ApiError('model_not_found', `The model \`${shown}\` does not exist.`, 'model');
}
