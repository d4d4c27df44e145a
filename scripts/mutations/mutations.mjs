/**
 * Faults that the tests must notice. Each is a list of textual edits to sources (the search string must occur exactly once)
 * and the test files that must turn red. Where a source changes its wording, change the edit with it: `run.mjs --check`
 * says whether all of them still apply.
 */

/** @type {{ name: string, edits: { file: string, search: string, replace: string }[], tests: string[] }[]} */
export const mutations = [
  {
    name: 'RoPE off',
    edits: [
      {
        file: 'native/src/model/forward.cc',
        search: 'rope_.rotate(x, position);',
        replace: 'rope_.rotate(x, 0);',
      },
    ],
    tests: ['test/native/families.test.ts', 'test/native/starter.test.ts'],
  },
  {
    name: 'one KV block swapped',
    edits: [
      {
        file: 'native/src/ops/attention.cc',
        search: 'batch.kv.keys(batch.layer, item.run->pages[p], item.kv_head)',
        replace: 'batch.kv.keys(batch.layer, item.run->pages[p == 1 ? 0 : p], item.kv_head)',
      },
    ],
    tests: ['test/native/families.test.ts', 'test/native/starter.test.ts'],
  },
  {
    name: 'a stop string emitted',
    edits: [
      {
        file: 'src/control/sessions/stop-strings.ts',
        search: 'this.#includeStop ? i + 1 : i + 1 - stop.length',
        replace: 'i + 1',
      },
    ],
    tests: ['test/unit/sessions/stop-strings.test.ts', 'test/unit/sessions/sessions.test.ts'],
  },
  {
    name: 'a page leaked on abort',
    edits: [
      {
        file: 'src/control/scheduler/scheduler.ts',
        search: "if (sequence.aborted && sequence.state === 'running') this.#leave(sequence);",
        replace: "if (sequence.aborted && sequence.state === 'running') sequence.state = 'done';",
      },
    ],
    tests: ['test/unit/scheduler'],
  },
  {
    name: 'auth skipped on one route',
    edits: [
      {
        file: 'src/api/middleware/auth.ts',
        search: "new Set(['/health',",
        replace: "new Set(['/tokenize', '/health',",
      },
    ],
    tests: ['test/unit/api/http.test.ts'],
  },
  {
    name: 'the batch changes one reduction order',
    edits: [
      {
        file: 'native/src/simd/kernels_body.h',
        search: 'for (int64_t k0 = 0; k0 < k; k0 += block) {',
        replace: 'for (int64_t done = 0; done < k; done += block) {\n    int64_t k0 = (k - 1 - done) / block * block;',
      },
      {
        file: 'native/src/simd/kernels_body.h',
        search: 'accumulate || k0 > 0',
        replace: 'accumulate || done > 0',
      },
    ],
    tests: ['test/native/invariance.test.ts'],
  },
  {
    name: 'pages keep what their last owner left',
    edits: [{ file: 'native/src/engine/engine.cc', search: '  clear_new_pages(plan);\n', replace: '' }],
    tests: ['test/native/nonfinite.test.ts'],
  },
  {
    name: 'ids above the tokenizer sampled',
    edits: [
      {
        file: 'native/src/engine/engine.cc',
        search: 'logits, model_->spec.vocab_size, options_.samplable_vocab, &banned',
        replace: 'logits, model_->spec.vocab_size, model_->spec.vocab_size, &banned',
      },
    ],
    tests: ['test/native/sampling.test.ts'],
  },
  {
    name: 'draws depend on the slot',
    edits: [
      {
        file: 'native/src/engine/engine.cc',
        search: 'uint64_t(outputs)};',
        replace: 'uint64_t(outputs + slot_index)};',
      },
    ],
    tests: ['test/native/invariance.test.ts'],
  },
  {
    name: 'penalties count the prompt',
    edits: [
      {
        file: 'native/src/ops/sampling.h',
        search: 'counts.output += output ? 1 : 0;',
        replace: 'counts.output += 1 + 0 * int(output);',
      },
    ],
    tests: ['test/native/sampling-controls.test.ts'],
  },
  {
    name: 'min_p before temperature',
    edits: [
      {
        file: 'native/src/ops/sampling.cc',
        search: 'float(std::log(p.min_p)) / scale',
        replace: 'float(std::log(p.min_p))',
      },
    ],
    tests: ['test/native/sampling.test.ts', 'test/native/sampling-controls.test.ts'],
  },
  {
    name: 'cache salt left out of the hash',
    edits: [
      {
        file: 'src/control/scheduler/block-hash.ts',
        search: 'JSON.stringify([tenant, adapterVersion, cacheSalt])',
        replace: 'JSON.stringify([tenant, adapterVersion, typeof cacheSalt])',
      },
    ],
    tests: ['test/unit/scheduler'],
  },
  {
    name: 'adapter version left out of the hash',
    edits: [
      {
        file: 'src/control/scheduler/block-hash.ts',
        search: 'JSON.stringify([tenant, adapterVersion, cacheSalt])',
        replace: 'JSON.stringify([tenant, typeof adapterVersion, cacheSalt])',
      },
    ],
    tests: ['test/unit/scheduler'],
  },
  {
    name: 'a preempted sequence loses one token',
    edits: [
      {
        file: 'src/control/scheduler/sequence.ts',
        search: '    this.planned = 0;\n',
        replace:
          '    this.planned = 0;\n    const kept = this.tokens(0, this.known - 1).slice();\n    this.#tokens.clear();\n    this.#tokens.append(kept);\n',
      },
    ],
    tests: ['test/unit/scheduler'],
  },
  {
    name: 'a parser drops its last brace',
    edits: [
      {
        file: 'src/control/sessions/parsers/hermes.ts',
        search: 'out.call(call.name, call.json);',
        replace: 'out.call(call.name, call.json.slice(0, -1));',
      },
    ],
    tests: ['test/unit/parsers'],
  },
];
