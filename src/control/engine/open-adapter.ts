/** From an adapter's folder to native memory, in the engine process. */
import { readAdapterFiles } from '../models/adapter-files.ts';
import { holdsVersion } from '../models/adapter-version.ts';
import { adapterBytes } from './adapter-bytes.ts';
import type { AdapterPlan, OpenAdapter } from './adapter-store.ts';
import { adapterTable } from './adapter-table.ts';
import type { ComputeDType, ModelSpec, NativeAddon, NativeModel } from './native.ts';

export interface AdapterSettings {
  spec: ModelSpec;
  dtype: ComputeDType;
  maxRank: number;
}

export function adapterOpener(addon: NativeAddon, model: NativeModel, settings: AdapterSettings): OpenAdapter {
  return async (adapter): Promise<AdapterPlan> => {
    const { directory, files, tensors, factors } = await readAdapterFiles(adapter.directory, settings);
    const load = async () => {
      const native = await addon.loadAdapter(model, { files, table: adapterTable(tensors, factors) });
      if (await holdsVersion(directory, adapter.version)) return native;
      native.close();
      throw new Error('Its files have changed since it was named.');
    };
    return { bytes: adapterBytes(factors, settings), load };
  };
}
