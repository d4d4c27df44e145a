/** What scripts/gpu-check makes of tests that fail or never end, without a GPU: its programs are told what to do. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';

// One test by its name; or those that no argument leaves out, of which one without an end ends the program.
const GPU_TESTS = `#!/bin/bash
names=(gpu_lora_adds gpu_lora_waits gpu_norms gpu_waits gpu_ropes hopper_adapters_add)
case $1 in
  --list) printf '%s\\n' "\${names[@]}"; exit ;;
  --device) exit ;;
  =gpu_lora_waits) exec sleep 1000 ;;
  =hopper_adapters_add) echo 'x.cc:3: 1, expected 2'; exit 1 ;;
  =*) exit ;;
esac
for name in "\${names[@]}"; do
  if [[ $name == hopper_* || " $* " == *" !=$name "* ]]; then continue; fi
  [[ $name != *_waits ]] || { echo "FAILED $name: no end after $TANDEM_TEST_SECONDS s"; exit 124; }
  echo "ok     $name"
done
`;

// What it is asked for, and by which kernels.
const GPU_ENGINE = `#!/bin/bash
echo "$1, adapters \${TANDEM_CUDA_ADAPTERS:-as built}, products \${TANDEM_CUDA_MATMUL:-as built}"
`;

/** Calls `look` with what it printed and what is in a file of its folder. */
function check(unseen: string, parts: string[], look: (said: string, file: (name: string) => string) => void) {
  const folder = mkdtempSync(join(tmpdir(), 'tandem-gpu-check-'));
  try {
    writeFileSync(join(folder, 'gpu_tests'), GPU_TESTS, { mode: 0o755 });
    writeFileSync(join(folder, 'gpu_engine'), GPU_ENGINE, { mode: 0o755 });
    const { stdout } = spawnSync('/bin/bash', ['scripts/gpu-check', join(folder, 'out'), ...parts], {
      env: {
        PATH: process.env['PATH'] ?? '',
        TANDEM_GPU_PROGRAMS: folder,
        TANDEM_GPU_TEST_SECONDS: '5',
        TANDEM_GPU_UNSEEN: unseen,
        TANDEM_GPU_ENGINES: '0.6b-bf16',
      },
      encoding: 'utf8',
    });
    look(stdout, (name) => readFileSync(join(folder, 'out', name), 'utf8').replace(/ +/g, ' '));
  } finally {
    rmSync(folder, { recursive: true });
  }
}

test('a test that never ends is one line, and keeps nothing else from running', () => {
  check('lora adapters', ['unseen', 'tests', 'engine'], (said, file) => {
    expect(file('unseen.txt')).toBe(
      'unseen: gpu_lora_adds ok\n' +
        'unseen: gpu_lora_waits FAILED: no end after 5 s\n' +
        'unseen: hopper_adapters_add FAILED: x.cc:3: 1, expected 2 \n',
    );
    // What has run does not run again, nor what ended the program of the others; what was behind that does.
    expect(file('tests.txt')).toBe(
      'ok gpu_norms\nFAILED gpu_waits: no end after 5 s\nand each that did not pass, alone:\nalone: gpu_ropes ok\n',
    );
    // Only adapters were wrong: products stay what they are.
    expect(said).toMatch(/^0\.6b, adapters behind, products as built$/m);
    expect(said).toMatch(/FAILED$/m);
  });
}, 120_000);

test('a device that does all that it is asked for is asked for all', () => {
  check('lora_adds', ['unseen', 'engine'], (said) => {
    expect(said).toMatch(/^0\.6b, adapters as built, products as built$/m);
    expect(said).toMatch(/\] passed$/m);
  });
}, 120_000);
