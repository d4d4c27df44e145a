/** Adapters named while the server runs, as vLLM does it; off unless the operator allows it, because paths are the server's. */
import type { Middleware } from 'koa';
import { EngineUnavailableError } from '../../control/engine/client.ts';
import { AdapterNameError } from '../../control/models/adapter-registry.ts';
import { MissingFileError, ModelError } from '../../control/models/errors.ts';
import {
  loadLoraAdapterFields,
  unloadLoraAdapterFields,
  validateLoadLoraAdapter,
  validateUnloadLoraAdapter,
} from '../../schemas/lora-adapter.ts';
import { ApiError, ClientGoneError } from '../errors.ts';
import { ClientWatch } from '../generation/run.ts';
import { entityOf } from '../middleware/auth.ts';
import { reportIgnored } from '../requests/ignored-fields.ts';
import type { RouteDeps } from './context.ts';

export function loadLoraAdapter(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const adapters = allowedAdapters(deps);
    const raw = await deps.bodies.json(ctx);
    const body = validateLoadLoraAdapter(raw);
    reportIgnored(ctx, raw, loadLoraAdapterFields);
    const name = body.lora_name;
    if (name === '' || body.lora_path === '') {
      throw new ApiError('invalid_user_input', "Both 'lora_name' and 'lora_path' must be provided.");
    }
    // Where memory is full a load waits, and others behind it: for nobody it need not.
    const watch = new ClientWatch(ctx.res);
    const asker = { tenant: entityOf(ctx), signal: watch.signal };
    await asApiError(() => adapters.add({ name, path: body.lora_path }, body.load_inplace === true, asker)).catch(
      (error: unknown) => {
        throw watch.signal.aborted ? new ClientGoneError() : error;
      },
    );
    watch.done();
    deps.log.info({ name }, 'adapter loaded');
    ctx.type = 'text/plain';
    ctx.body = `Success: LoRA adapter '${name}' added successfully.`;
  };
}

export function unloadLoraAdapter(deps: RouteDeps): Middleware {
  return async (ctx) => {
    const adapters = allowedAdapters(deps);
    const raw = await deps.bodies.json(ctx);
    const body = validateUnloadLoraAdapter(raw);
    reportIgnored(ctx, raw, unloadLoraAdapterFields);
    const name = body.lora_name;
    if (name === '')
      throw new ApiError('invalid_user_input', "'lora_name' needs to be provided to unload a LoRA adapter.");
    await asApiError(() => adapters.remove(name));
    deps.log.info({ name }, 'adapter unloaded');
    ctx.type = 'text/plain';
    ctx.body = `Success: LoRA adapter '${name}' removed successfully.`;
  };
}

/** A server that does not allow it has no such path, as vLLM; the message says why. */
function allowedAdapters({ settings, adapters }: RouteDeps): NonNullable<RouteDeps['adapters']> {
  if (!settings.allowRuntimeLoraUpdating || adapters === null)
    throw new ApiError(
      'not_found',
      `Not Found: ${adapters ? 'the server was started without --allow-runtime-lora-updating' : 'this engine has no adapters'}.`,
    );
  return adapters;
}

async function asApiError(work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch (error) {
    if (error instanceof AdapterNameError) {
      if (error.reason === 'unknown') throw new ApiError('model_not_found', error.message, 'lora_name');
      throw new ApiError('invalid_user_input', error.message, 'lora_name');
    }
    if (error instanceof EngineUnavailableError) throw new ApiError('unavailable', error.message, null, 1);
    if (error instanceof MissingFileError) throw new ApiError('no_such_resource', error.message, 'lora_path');
    if (error instanceof ModelError) throw new ApiError('invalid_parameter', error.message, 'lora_path');
    throw error;
  }
}
