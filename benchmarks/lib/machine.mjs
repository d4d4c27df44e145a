/** What a result was measured on. */
import { readFileSync } from 'node:fs';
import os from 'node:os';

function cpuFlags() {
  try {
    const line = /^flags\s*:(.*)$/m.exec(readFileSync('/proc/cpuinfo', 'utf8'));
    const wanted = ['avx2', 'avx512f', 'avx512_vnni', 'avx512_bf16', 'amx_bf16'];
    return wanted.filter((flag) => line?.[1].split(' ').includes(flag));
  } catch {
    return [];
  }
}

export function machine() {
  const cpus = os.cpus();
  return {
    cpu: cpus[0]?.model.trim() ?? 'unknown',
    cores: os.availableParallelism(),
    flags: cpuFlags(),
    memory_gib: Math.round(os.totalmem() / 2 ** 30),
    os: `${os.type()} ${os.release().split('.', 2).join('.')}`,
    node: process.version,
    load_average: os.loadavg().map((value) => Number(value.toFixed(2))),
    date: new Date().toISOString(),
  };
}
