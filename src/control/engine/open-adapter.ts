/** From an adapter's folder to native memory, in the engine process. */
import { readAdapterFiles, sizesOf, type AdapterFiles } from '../models/adapter-files.ts';
import { holdsVersion } from '../models/adapter-version.ts';
import type { AdapterPlan, OpenAdapter } from './adapter-store.ts';
import { adapterTable } from './adapter-table.ts';
import type { ComputeDType, ModelSpec, NativeAddon, NativeModel } from './native.ts';

export interface AdapterSettings {
  spec: ModelSpec;
  dtype: ComputeDType;
  maxRank: number;
}

/** Outputs of one panel at most: what packing may add at both ends of a projection. */
const LARGEST_PANEL = 64;

export function adapterOpener(addon: NativeAddon, model: NativeModel, settings: AdapterSettings): OpenAdapter {
  return async (adapter): Promise<AdapterPlan> => {
    const found = await readAdapterFiles(adapter.directory, settings);
    const { directory, files, tensors, factors } = found;
    const load = async () => {
      const native = await addon.loadAdapter(model, { files, table: adapterTable(tensors, factors) });
      if (await holdsVersion(directory, adapter.version)) return native;
      native.close();
      throw new Error('Its files have changed since it was named.');
    };
    return { bytes: packedBytes(found, settings), load };
  };
}

function packedBytes({ factors }: AdapterFiles, { spec, dtype }: AdapterSettings): number {
  const numbers = factors.reduce((sum, { module, rank }) => {
    const [inputs, outputs] = sizesOf(module, spec);
    return sum + (rank + 1) * (inputs + 32 + outputs + 2 * LARGEST_PANEL);
  }, 0);
  return numbers * (dtype === 'bfloat16' ? 2 : 4);
}
