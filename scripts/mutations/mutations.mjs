/**
 * Faults that the tests must notice. Each is a list of textual edits to sources (the search string must occur exactly once)
 * and the test files that must turn red. Where a source changes its wording, change the edit with it: `run.mjs --check`
 * says whether all of them still apply.
 */

/** @type {{ name: string, edits: { file: string, search: string, replace: string }[], tests: string[] }[]} */
export const mutations = [
  {
    name: 'experts: all of a row count the same',
    edits: [
      {
        file: 'native/src/model/experts.cc',
        search: 'const float weight = weights ? weights[pair] : 1.0f;',
        replace: 'const float weight = weights ? 1.0f / float(used()) : 1.0f;',
      },
    ],
    tests: ['test/native/families.test.ts'],
  },
  {
    name: 'experts: of equal logits the last is chosen',
    edits: [
      {
        file: 'native/src/ops/expert_routing.cc',
        search: 'if (logits[e] > (best < 0',
        replace: 'if (logits[e] >= (best < 0',
      },
    ],
    tests: ['native/test'],
  },
  {
    name: 'experts: the part of an expert that a batch cuts off is lost',
    edits: [
      {
        file: 'native/src/model/experts.cc',
        search: 'end_ += count;',
        replace: 'end_ += left;',
      },
    ],
    tests: ['native/test'],
  },
  {
    name: 'experts: weights of a neighbour',
    edits: [
      {
        file: 'native/src/model/weights.h',
        search: 'return {expert * panels, (expert + 1) * panels};',
        replace: 'return {expert / 2 * panels, (expert / 2 + 1) * panels};',
      },
    ],
    tests: ['test/native/families.test.ts'],
  },
  {
    name: 'experts: the router gets no gradient',
    edits: [
      {
        file: 'native/src/train/experts_backward.cc',
        search: 'd_weights_[size_t(pair)] = sum;',
        replace: 'd_weights_[size_t(pair)] = 0 * sum;',
      },
    ],
    tests: ['test/native/training.test.ts'],
  },
  {
    name: 'GPU experts: a row is routed where the one before is still read',
    edits: [
      {
        file: 'native/cuda/experts/route.cu',
        search: "  __syncwarp();  // the space is the next row's",
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU experts: of equal logits the last is chosen',
    edits: [
      {
        file: 'native/cuda/experts/route.cu',
        search: '<< 32 | (0xffffffffu - uint32_t(expert));',
        replace: '<< 32 | uint32_t(expert + 1);',
      },
      {
        file: 'native/cuda/experts/route.cu',
        search: 'const uint32_t expert = 0xffffffffu - uint32_t(best);',
        replace: 'const uint32_t expert = uint32_t(best) - 1;',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU experts: no tile for what is left of an expert',
    edits: [
      {
        file: 'native/cuda/experts/experts_matmul.cu',
        search: 'return used + (pairs - used) / tile_pairs;',
        replace: 'return std::max<int64_t>(1, pairs / tile_pairs);',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU experts: quantised weights of a neighbour',
    edits: [
      {
        file: 'native/cuda/experts/pair_rows.h',
        search: 'return int64_t(tile.expert) * ((e.n + kQuantPanel - 1) / kQuantPanel);',
        replace: 'return int64_t(tile.expert) * (e.n / kQuantPanel);',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU experts: the router gets no gradient',
    edits: [
      {
        file: 'native/cuda/experts/combine.cu',
        search: 'if (threadIdx.x == 0) a.d_weights[pair] = sums[0];',
        replace: 'if (threadIdx.x == 0) a.d_weights[pair] = 0 * sums[0];',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU experts: by wgmma, rows of what is gated lie by their pairs',
    edits: [
      {
        file: 'native/cuda/experts/experts_wgmma.cu',
        search: 'e.gated + (place * e.n + output) / 2',
        replace: 'e.gated + (pair * e.n + output) / 2',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU experts: by wgmma, sums of the next tile are stored too',
    edits: [
      {
        file: 'native/cuda/experts/experts_transposed_wgmma.cu',
        search: 'if (row + half * 8 >= tile.count) continue;',
        replace: 'if (row + half * 8 > tile.count) continue;',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU experts: by wgmma, rows of sums are read before they are there',
    edits: [
      {
        file: 'native/cuda/experts/experts_wgmma.cu',
        search: '  __syncthreads();  // the rows are there',
        replace: '',
      },
      {
        file: 'native/cuda/experts/experts_wgmma.cu',
        search: '  __syncthreads();  // all are done with the stages',
        replace: '  __syncthreads();\n  __syncthreads();',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'experts: gradients without the weight of the expert',
    edits: [
      {
        file: 'native/src/train/experts_backward.cc',
        search: 'd[j] *= experts_.weight(pair);',
        replace: 'd[j] *= 1.0f;',
      },
    ],
    tests: ['test/native/training.test.ts'],
  },
  {
    name: 'experts: layers without experts are taken for mixtures',
    edits: [
      {
        file: 'src/control/models/families.ts',
        search: '(i + 1) % step === 0 && !plain.has(i) ? 1 : 0',
        replace: '(i + 1) % step === 0 ? 1 : 0',
      },
    ],
    tests: ['test/unit/models/config.test.ts'],
  },
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
    name: 'YaRN without its factor of attention',
    edits: [
      {
        file: 'native/src/ops/rope.cc',
        search: 'spec.scaling == RopeScaling::kYarn ? spec.attention_factor : 1;',
        replace: 'spec.scaling == RopeScaling::kFactors ? spec.attention_factor : 1;',
      },
    ],
    tests: ['test/native/families.test.ts'],
  },
  {
    name: 'one KV block swapped',
    edits: [
      {
        file: 'native/src/simd/attention_body.h',
        search: 'args.keys + int64_t(args.pages[page]) * args.page_stride',
        replace: 'args.keys + int64_t(args.pages[page == 1 ? 0 : page]) * args.page_stride',
      },
    ],
    tests: ['test/native/families.test.ts', 'test/native/starter.test.ts'],
  },
  {
    name: 'damaged quantised weights believed',
    edits: [
      {
        file: 'native/src/model/weight_cache.cc',
        search: 'ok && combined(hashes) == record.data_hash',
        replace: 'bool(ok)',
      },
    ],
    tests: ['test/api/quantised.test.ts'],
  },
  {
    name: 'the scale of int8 values dropped',
    edits: [
      {
        file: 'native/src/simd/attention_body.h',
        search: 'kInt8 ? vmul(e, vload(value_scales + i)) : e',
        replace: 'e',
      },
    ],
    tests: ['test/native/quantised.test.ts'],
  },
  {
    name: 'AMX: a last strip of rows begins where the one before it ends',
    edits: [
      {
        file: 'native/src/simd/amx_body.h',
        search: 'row = strip < overlapping ? strip * height : m - height;',
        replace: 'row = strip * height;',
      },
    ],
    tests: ['native/test/amx'],
  },
  {
    name: 'AMX: a last strip adds to rows that the one before it has written',
    edits: [
      {
        file: 'native/src/simd/amx_body.h',
        search: 'else if (k0 == 0 && strip < overlapping) sums.from',
        replace: 'else if (k0 == 0) sums.from',
      },
    ],
    tests: ['native/test/amx'],
  },
  {
    name: 'AMX: tiles of x of 16 rows beside lower sums',
    edits: [
      {
        file: 'native/src/simd/amx_body.h',
        search: 'set(4, upper, 4 * pairs);',
        replace: 'set(4, kTileRows, 4 * pairs);',
      },
    ],
    tests: ['native/test/amx'],
  },
  {
    name: 'AMX: tiles not given a new shape for fewer inputs',
    edits: [
      {
        file: 'native/src/simd/amx_body.h',
        search: '| uint32_t(lower) << 8 | uint32_t(pairs) << 16;',
        replace: '| uint32_t(lower) << 8;',
      },
    ],
    tests: ['native/test/amx'],
  },
  {
    name: 'AMX: the last column tile of quantised weights skipped',
    edits: [
      {
        file: 'native/src/simd/quant_amx_body.h',
        search: 'for (int c = 0; c < kPanelRegs; ++c) {\n    const bool last',
        replace: 'for (int c = 0; c + 1 < kPanelRegs; ++c) {\n    const bool last',
      },
    ],
    tests: ['native/test/amx'],
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
    name: 'a row of an ended sequence run by the step planned ahead',
    edits: [
      {
        file: 'native/src/engine/engine.cc',
        search: 'return plan.ahead && has_ended_rows(plan) ? run_rows(without_ended(plan)) : run_rows(plan);',
        replace: 'return run_rows(plan);',
      },
    ],
    tests: ['test/native/ahead.test.ts'],
  },
  {
    name: 'a step planned ahead of what an extension says',
    edits: [
      {
        file: 'src/control/scheduler/sequence.ts',
        search: 'return this.adviser !== null || (this.jumps && this.constraint !== null);',
        replace: 'return this.jumps && this.constraint !== null;',
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
        file: 'native/src/simd/products_body.h',
        search: 'for (int64_t k0 = 0; k0 < k; k0 += block) {',
        replace: 'for (int64_t done = 0; done < k; done += block) {\n    int64_t k0 = (k - 1 - done) / block * block;',
      },
      {
        file: 'native/src/simd/products_body.h',
        search: 'accumulate || k0 > 0',
        replace: 'accumulate || done > 0',
      },
      {
        file: 'native/src/simd/products_body.h',
        search: 'for (int64_t start = 0; start < k; start += kWideBlock) {',
        replace:
          'for (int64_t done = 0; done < k; done += kWideBlock) {\n    int64_t start = (k - 1 - done) / kWideBlock * kWideBlock;',
      },
      {
        file: 'native/src/simd/products_body.h',
        search: 'accumulate || start > 0',
        replace: 'accumulate || done > 0',
      },
    ],
    tests: ['test/native/invariance.test.ts'],
  },
  {
    name: 'pages keep what their last owner left',
    edits: [{ file: 'native/src/engine/cpu_backend.cc', search: '  clear_new_pages(batch);\n', replace: '' }],
    tests: ['test/native/nonfinite.test.ts'],
  },
  {
    name: 'ids above the tokenizer sampled',
    edits: [
      {
        file: 'native/src/engine/engine.cc',
        search: 'options_.samplable_vocab, &banned',
        replace: 'model_->spec.vocab_size, &banned',
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
    name: 'the old adapter kept under a name that moved',
    edits: [
      {
        file: 'src/control/models/adapter-registry.ts',
        search: '      this.#entries.set(name, {',
        replace: '      if (!before) this.#entries.set(name, {',
      },
    ],
    tests: ['test/unit/models/adapter-files.test.ts', 'test/api/adapters.test.ts'],
  },
  {
    name: 'spaces that Metaspace does not cut',
    edits: [
      {
        file: 'src/control/models/pre-tokenizer.ts',
        search: "fields.boolean('split', true)",
        replace: "fields.boolean('split', false)",
      },
    ],
    tests: ['test/unit/models/pre-tokenizer.test.ts'],
  },
  {
    name: 'chats with tools in the template of those without',
    edits: [
      {
        file: 'src/control/sessions/prompt-renderer.ts',
        search: '(tools && this.#parts.toolTemplate) ?? this.#parts.template',
        replace: 'this.#parts.template',
      },
    ],
    tests: ['test/unit/sessions/tool-template.test.ts'],
  },
  {
    name: "a tool's keys in the client's order",
    edits: [
      {
        file: 'src/control/sessions/messages.ts',
        search: 'return Object.fromEntries([...known, ...Object.entries(record)]);',
        replace: 'return Object.fromEntries([...Object.entries(record), ...known]);',
      },
    ],
    tests: ['test/unit/sessions/prompt-renderer.test.ts'],
  },
  {
    name: 'tokens of added_tokens.json left out',
    edits: [
      {
        file: 'src/control/models/tokenizer-files.ts',
        search: 'of Object.entries(later)) {',
        replace: 'of Object.entries({} as JsonObject)) {',
      },
    ],
    tests: ['test/unit/models/later-tokens.test.ts'],
  },
  {
    name: "an adapter's scale left out",
    edits: [{ file: 'native/src/simd/lora_body.h', search: 'args.scale * horizontal_sum', replace: 'horizontal_sum' }],
    tests: ['test/native/adapters.test.ts'],
  },
  {
    name: 'an adapter not pinned by its sequence',
    edits: [{ file: 'src/control/engine/adapter-store.ts', search: 'resident.pins++;', replace: '' }],
    tests: ['test/unit/engine/adapter-gate.test.ts'],
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
        file: 'src/control/sessions/parsers/call-reader.ts',
        search: 'out.call(call.name, call.json);',
        replace: 'out.call(call.name, call.json.slice(0, -1));',
      },
    ],
    tests: ['test/unit/parsers'],
  },
  {
    name: 'advantage without the mean',
    edits: [
      {
        file: 'src/control/training/advantages.ts',
        search: 'return rewards.map((reward) => reward - average);',
        replace: 'return rewards.map((reward) => reward - 0 * average);',
      },
    ],
    tests: ['test/unit/training/loss.test.ts', 'test/unit/training/batch.test.ts'],
  },
  {
    name: 'a prompt token trained',
    edits: [
      {
        file: 'src/control/training/history-tokens.ts',
        search: '    current.add(prompt.subarray(current.length));\n',
        replace:
          '    current.add(prompt.subarray(current.length, -1));\n    current.train(unscored(prompt.subarray(-1)));\n',
      },
    ],
    tests: ['test/unit/training/history.test.ts'],
  },
  {
    name: 'the sampled end token untrained',
    edits: [
      {
        file: 'src/control/training/choice-tokens.ts',
        search: '  return { ids, logprobs: Float64Array.from(logprobs) };',
        replace: '  return { ids: ids.slice(0, -1), logprobs: Float64Array.from(logprobs) };',
      },
    ],
    tests: ['test/unit/training/history.test.ts'],
  },
  {
    name: 'weight decay off',
    edits: [
      { file: 'src/control/training/rl-plan.ts', search: '  weightDecay: 0.1,\n', replace: '  weightDecay: 0,\n' },
    ],
    tests: ['test/unit/training/runner.test.ts', 'test/unit/training/runner-interruptions.test.ts'],
  },
  {
    name: 'a job replayed twice',
    edits: [
      {
        file: 'src/control/training/runner.ts',
        search: '    if (made) return made;\n',
        replace: '    if (made && !made) return made;\n',
      },
    ],
    tests: ['test/unit/training/runner.test.ts', 'test/unit/training/runner-interruptions.test.ts'],
  },
  {
    name: 'grammar: one allowed token masked',
    edits: [
      {
        file: 'native/src/grammar/mask.cc',
        search: '    masks[i]->tokens.unite_into(mask);\n',
        replace: '    masks[i]->tokens.unite_into(mask);\n    mask[3] &= mask[3] - 1;\n',
      },
    ],
    tests: ['test/native/grammar/fuzz.test.ts'],
  },
  {
    name: 'grammar: one forbidden token allowed',
    edits: [
      {
        file: 'native/src/grammar/mask.cc',
        search: '    masks[i]->tokens.unite_into(mask);\n',
        replace: '    masks[i]->tokens.unite_into(mask);\n    mask[3] |= ~mask[3] & (mask[3] + 1);\n',
      },
    ],
    tests: ['test/native/grammar/fuzz.test.ts'],
  },
  {
    name: 'look-around: a promise ends with the text unkept',
    edits: [
      {
        file: 'native/src/grammar/asserted.cc',
        search: 'languages_.promises.kept(path.promises) ? accept_(path.state) : kNone',
        replace: 'accept_(path.state)',
      },
    ],
    tests: ['test/native/grammar/look-around.test.ts'],
  },
  {
    name: 'look-around: a path stays whose promise cannot be kept',
    edits: [
      {
        file: 'native/src/grammar/asserted.cc',
        search: 'if (next == kNone) return kNone;\n      if (!always',
        replace: 'if (next == kNone) continue;\n      if (!always',
      },
    ],
    tests: ['test/native/grammar/look-around.test.ts'],
  },
  {
    name: 'look-around: a start within a look-ahead is any place',
    edits: [
      {
        file: 'native/src/grammar/regex.cc',
        search: '{!ahead, ahead}, at_start, budget)',
        replace: '{!ahead, ahead}, true, budget)',
      },
    ],
    tests: ['test/native/grammar/look-around.test.ts'],
  },
  {
    name: 'look-around: what promises less is left out',
    edits: [
      {
        file: 'native/src/grammar/asserted.cc',
        search: 'languages_.promises.includes(paths[i].promises, other.promises)',
        replace: 'languages_.promises.includes(other.promises, paths[i].promises)',
      },
    ],
    tests: ['test/native/grammar/look-around.test.ts'],
  },
  {
    name: 'look-around: look-behind stands still',
    edits: [
      {
        file: 'native/src/grammar/asserted.cc',
        search: 'kNone ? kNone : languages.behind[i]->next(own[i], byte)',
        replace: 'kNone ? kNone : own[i]',
      },
    ],
    tests: ['test/native/grammar/look-around.test.ts'],
  },
  {
    name: 'grammar: additionalProperties ignored',
    edits: [
      {
        file: 'native/src/grammar/schema.cc',
        search: 'formula.parts.push_back(others ? read(*others, base) : options_.only_declared ? out_.no : out_.yes);',
        replace: 'formula.parts.push_back(out_.yes);',
      },
    ],
    tests: ['test/native/grammar/fuzz.test.ts', 'test/native/grammar/suite.test.ts'],
  },
  {
    name: 'an event written after it is visible',
    edits: [
      {
        file: 'src/control/training/jobs/stored-ports.ts',
        search: '      await this.#jobs.append(jobId, event);\n',
        replace: '      void this.#jobs.append(jobId, event);\n',
      },
    ],
    tests: ['test/unit/training/job-loop.test.ts'],
  },
  {
    name: 'a job accepted twice for one idempotency key',
    edits: [
      {
        file: 'src/control/store/job-repository.ts',
        search: '      if (before !== null) return before;\n',
        replace: '      if (before !== null && repeatable === null) return before;\n',
      },
    ],
    tests: ['test/unit/training/preview-jobs.test.ts'],
  },
  {
    name: 'the old step kept after publication',
    edits: [
      {
        file: 'src/control/training/models/registry.ts',
        search: 'if (entry.latest === null || checkpoint.step >= entry.latest.step) entry.latest = checkpoint;',
        replace: 'if (entry.latest === null) entry.latest = checkpoint;',
      },
    ],
    tests: ['test/unit/training/registry.test.ts'],
  },
  {
    name: 'a deleted adapter stays in memory',
    edits: [
      {
        file: 'src/control/engine/adapter-store.ts',
        search: '    if (resident.pins === 0 && this.#unwanted.has(version)) this.#drop(version, resident);\n',
        replace: '',
      },
    ],
    tests: ['test/unit/engine/adapter-gate.test.ts'],
  },
  {
    name: 'a damaged snapshot taken',
    edits: [
      {
        file: 'src/control/training/jobs/stored-ports.ts',
        search: "file !== null && digest.digest('hex') === job.snapshotSha256",
        replace: 'file !== null',
      },
    ],
    tests: ['test/unit/training/torn-files.test.ts'],
  },
  {
    name: 'a job that lets others go first forgets its last steps',
    edits: [
      {
        file: 'src/control/training/runner.ts',
        search: '      if (!yields && !last && !writer.isDue()) continue;\n',
        replace:
          '      if (yields && !writer.isDue()) throw new TurnOverError();\n      if (!last && !writer.isDue()) continue;\n',
      },
    ],
    tests: ['test/unit/training/runner-interruptions.test.ts'],
  },
  {
    name: 'a job that has yielded goes before those that it yielded to',
    edits: [
      {
        file: 'src/control/store/job-repository.ts',
        search: 'Math.max(job.sequence, yielded.get(job.model_id) ?? 0)',
        replace: 'job.sequence',
      },
    ],
    tests: ['test/unit/store/jobs.test.ts', 'test/unit/training/job-turns.test.ts'],
  },
  {
    name: 'a job that has yielded waits for all that come later',
    edits: [
      {
        file: 'src/control/store/job-repository.ts',
        search: 'Math.max(job.sequence, yielded.get(job.model_id) ?? 0)',
        replace: '(yielded.has(job.model_id) ? Number.MAX_SAFE_INTEGER : job.sequence)',
      },
    ],
    tests: ['test/unit/store/jobs.test.ts', 'test/unit/training/job-turns.test.ts'],
  },
  {
    name: 'a finished job called failed',
    edits: [
      {
        file: 'src/control/training/runner.ts',
        search:
          "    await events.append(job.id, 'end', 'training_ended', { step: checkpoint.step });\n    return 'ended';",
        replace:
          "    const failed = { error_message: 'x' };\n    await events.append(job.id, 'end', 'training_ended', { step: checkpoint.step }).catch(() =>\n      events.append(job.id, 'end', 'training_failed', failed),\n    );\n    return 'ended';",
      },
    ],
    tests: ['test/unit/training/runner.test.ts', 'test/unit/training/runner-interruptions.test.ts'],
  },
  {
    name: 'a cut-off job not queued again',
    edits: [
      {
        file: 'src/control/training/jobs/job-loop.ts',
        search: '      else await this.#options.repository.requeue(job.id, true);\n',
        replace: '',
      },
    ],
    tests: ['test/unit/training/job-loop.test.ts'],
  },
  {
    name: "another entity's id readable",
    edits: [
      {
        file: 'src/control/store/job-repository.ts',
        search:
          "      .where('id', '=', id)\n      .where('entity', '=', entity)\n      .executeTakeFirst();\n    return row === undefined ? null : toRecord(row);",
        replace:
          "      .where('id', '=', id)\n      .executeTakeFirst();\n    return row === undefined ? null : toRecord(row);",
      },
    ],
    tests: ['test/unit/training/preview-jobs.test.ts'],
  },
  {
    name: 'a private address among public ones',
    edits: [
      {
        file: 'src/control/training/artifacts/guarded-fetch.ts',
        search: 'addresses.length === 0 || !addresses.every((address) => network.allowed(address))',
        replace: 'addresses.length === 0 || !addresses.some((address) => network.allowed(address))',
      },
    ],
    tests: ['test/unit/training/guarded-fetch.test.ts'],
  },
  {
    name: 'CUDA: a missing barrier',
    edits: [
      {
        file: 'native/cuda/attention/paged_attention.cu',
        search:
          '    __syncthreads();  // these keys are there for all, and all are done with those whose stage the next ones take\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: "CUDA: no barrier between a block's largest value and the next use of its memory",
    edits: [
      {
        file: 'native/cuda/common/reduce.h',
        search: 'best = fmaxf(best, parts[i]);\n  __syncthreads();\n',
        replace: 'best = fmaxf(best, parts[i]);\n',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: a dropped wait',
    edits: [
      {
        file: 'native/cuda/gemm/matmul_mma_block.h',
        search: '      cp_async_wait<kStages - 2>();\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: an off-by-one page',
    edits: [
      {
        file: 'native/cuda/attention/paged_attention.cu',
        search: 'const int64_t index = position / kPagePositions;',
        replace: 'const int64_t index = (position + 1) / kPagePositions;',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU engine: a chunk that begins at its own positions',
    edits: [
      {
        file: 'native/src/device/batch.cc',
        search: 'const int64_t position = run.first_position + i;',
        replace: 'const int64_t position = i;',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU engine: the longest run of a step counts one position too few',
    edits: [
      {
        file: 'native/src/device/batch.cc',
        search: 'longest = std::max(longest, run.first_position + 1);',
        replace: 'longest = std::max(longest, run.first_position);',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: merged splits leave out the logs of their sums',
    edits: [
      {
        file: 'native/cuda/attention/attention_merge.h',
        search: 'if (a.log_sums != nullptr && threadIdx.x % kWarp == 0) a.log_sums[out]',
        replace: 'if (false && threadIdx.x % kWarp == 0) a.log_sums[out]',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU engine: a shared prefix counts for one sequence only',
    edits: [
      {
        file: 'native/src/device/batch.cc',
        search: 'tiles.members.push_back({tile.first_row, tile.first_position, alike[i]});',
        replace: 'tiles.members.push_back({tile.first_row, tile.first_position, alike[first]});',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU engine: a token that its grammar refused is kept',
    edits: [
      {
        file: 'native/src/device/sampler.cc',
        search: 'while (answer.sample.token >= 0 && !request.input->takes(answer.sample.token)) {',
        replace: 'while (answer.sample.token >= 0 && !request.input->takes(answer.sample.token) && false) {',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU engine: a queued step does not wait for its inputs',
    edits: [
      {
        file: 'native/src/device/backend.cc',
        search: '  stream_.follow(lane.sent);\n  launch_layers(index);\n',
        replace: '  launch_layers(index);\n',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU engine: the inputs of a queued step over those of the running one',
    edits: [
      {
        file: 'native/src/device/backend.cc',
        search: 'return lane_ = (lane_ + 1) % kLanes;',
        replace: 'return lane_;',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'grammar: an item of uniqueItems may be written where only used values are left',
    edits: [
      {
        file: 'native/src/grammar/unique_items.cc',
        search: '  return count > used.beginning_in(start, holds, size_t(count));',
        replace: '  return count > 0 || holds("");',
      },
    ],
    tests: ['native/test'],
  },
  {
    name: 'GPU engine: a queued step has a result for what the one before it ended',
    edits: [
      {
        file: 'native/src/engine/queue.cc',
        search: '    for (Flight& later : flights) leave_out(drawing.slot, later);\n',
        replace: '',
      },
    ],
    tests: ['native/test'],
  },
  {
    name: 'GPU engine: the results of a queued step are taken from the other lane',
    edits: [
      {
        file: 'native/src/device/backend.cc',
        search: 'sampler_.answers(index, again)',
        replace: 'sampler_.answers(kLanes - 1 - index, again)',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU engine: layers that were fed a token that its grammar refused are kept',
    edits: [
      {
        file: 'native/src/device/backend.cc',
        search: '  launch_layers(queued_.front());\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU engine: a queued step is drawn before the results that decide its masks',
    edits: [
      {
        file: 'native/src/engine/queue.cc',
        search: 'if (!flight.late || flight.drawn || flight.failure) return;',
        replace: 'if (flight.drawn || flight.failure) return;',
      },
      {
        file: 'native/src/engine/queue.cc',
        search: '  if (flight.late) {\n',
        replace: '  if (false) {\n',
      },
    ],
    tests: ['native/test'],
  },
  {
    name: 'GPU engine: a piece of a prompt behind which nothing is drawn is no part of its history',
    edits: [
      {
        file: 'native/src/engine/queue.cc',
        search: '    remember(plan.rows, batch.tokens);\n    begin_draws(flight);\n',
        replace: '    begin_draws(flight);\n',
      },
    ],
    tests: ['native/test'],
  },
  {
    name: 'GPU engine: pages are copied out while a queued step writes them',
    edits: [
      {
        file: 'native/src/device/backend.cc',
        search: '  stream_.wait();\n  forward_.read_page(page, out);\n',
        replace: '  forward_.read_page(page, out);\n',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU engine: a slot is closed while its results are awaited',
    edits: [
      {
        file: 'native/src/engine/queue.cc',
        search: 'return slots_[size_t(slot)].awaited > 0; }))',
        replace: 'return slots_[size_t(slot)].awaited > 9; }))',
      },
    ],
    tests: ['native/test'],
  },
  {
    name: 'GPU engine: a recorded step reads the inputs of the other lane',
    edits: [
      {
        file: 'native/src/device/backend.cc',
        search: 'cuda::Graph& graph = known->second[index];',
        replace: 'cuda::Graph& graph = known->second[0];',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: a kernel that begins early reads before its inputs are there',
    edits: [
      {
        file: 'native/cuda/rope/rope_store.cu',
        search: '  wait_for_inputs();\n  Four pairs[2] = {};\n  load_pairs<kWhole, kAtOnce>(a, s, half, pairs);\n',
        replace: '  Four pairs[2] = {};\n  load_pairs<kWhole, kAtOnce>(a, s, half, pairs);\n  wait_for_inputs();\n',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU engine: adapters run beside a product that may not have its inputs',
    edits: [
      {
        file: 'native/src/device/layers_adapters.cc',
        search: 'both.product.beside = both.adapters.beside = lets_next_begin(both.product);',
        replace: 'both.adapters.beside = lets_next_begin(both.product);',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: no fence between zeros behind the last key and the products that read them',
    edits: [{ file: 'native/cuda/attention/attention_wgmma.cu', search: '  shared_writes_fence();\n', replace: '' }],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU engine: the tables of rotations are no part of the memory plan',
    edits: [{ file: 'native/src/device/sizes.cc', search: ' + rope_floats + hidden) * f', replace: ' + hidden) * f' }],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU engine: an adapter goes while a step that drew nothing may still read it',
    edits: [
      {
        file: 'native/src/engine/engine.cc',
        search: 'running_ = waited ?',
        replace: 'running_ = !waited ?',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU engine: an adapter goes while a step whose grammars ended everything may still read it',
    edits: [
      {
        file: 'native/src/engine/engine.cc',
        search: 'return s.finish != Finish::kGrammar;',
        replace: 'return s.finish == s.finish;',
      },
    ],
    tests: ['native/test'],
  },
  {
    name: 'GPU engine: the last parts of a pass are added by nobody',
    edits: [
      {
        file: 'native/src/device/forward.cc',
        search: '  layers_.settle(hidden_.data());\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU engine: what adapters add beside a product is not read',
    edits: [
      {
        file: 'native/src/device/layers_adapters.cc',
        search: '  ++both->parts.count;\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: attention computes with keys that are on their way',
    edits: [
      {
        file: 'native/cuda/attention/paged_attention.cu',
        search: '    cp_async_wait<0>();\n',
        replace: '    cp_async_wait<1>();\n',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: a quantised weight of the wrong half of a word',
    edits: [
      {
        file: 'native/cuda/gemm/widen.h',
        search: 'widen_two<F, false>(word, word, bit, bit + 16, which, s)',
        replace: 'widen_two<F, false>(word, word, bit, bit, which, s)',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: a 4-bit weight without the last bits of its scale',
    edits: [
      {
        file: 'native/cuda/gemm/widen.h',
        search: 'fma_pairs(quarters, high, multiply_pairs(quarters, low))',
        replace: 'multiply_pairs(quarters, high)',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: few tokens of quantised weights taken before all have brought them',
    edits: [
      {
        file: 'native/cuda/gemm/matmul_few_block.h',
        search: '    __syncthreads();  // and all are done',
        replace: '    // and all are done',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: warps whose largest value is the cutoff list no alternatives',
    edits: [
      {
        file: 'native/cuda/sampling/listing.cu',
        search: 'best && best_tiles[tile] >= best_cutoff',
        replace: 'best && best_tiles[tile] > best_cutoff',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: warps whose largest value is the cutoff list no candidates',
    edits: [
      {
        file: 'native/cuda/sampling/listing.cu',
        search: 'draws && tiles[tile] >= cutoff',
        replace: 'draws && tiles[tile] > cutoff',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: ranks that go by the first warp of each slice',
    edits: [
      {
        file: 'native/cuda/sampling/listing.cu',
        search: 'return space.best_tiles[tile] > value;',
        replace: 'return space.best_tiles[tile / kSliceWarps * kSliceWarps] > value;',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: edits of a listed tile without those of its second round',
    edits: [
      {
        file: 'native/cuda/sampling/processed.h',
        search: 'for (int first = 0; first < count; first += kWarp) {',
        replace: 'for (int first = 0; first < min(count, kWarp); first += kWarp) {',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: values that are found again without their edits',
    edits: [
      {
        file: 'native/cuda/sampling/processed.h',
        search: 'i < count; i += kFinishThreads',
        replace: 'i < 0 * count; i += kFinishThreads',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: top_p is a share of no mass',
    edits: [
      {
        file: 'native/cuda/sampling/row.h',
        search: 'if (filters(a, p)) return p.top_p < 1 && !limits_count(a, p);',
        replace: 'if (filters(a, p)) return false;',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: a draw from few candidates counts its own mass before itself',
    edits: [
      {
        file: 'native/cuda/sampling/candidates.h',
        search: 'return id_of(places[i]) < id;',
        replace: 'return id_of(places[i]) <= id;',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: bins of ids that forget what is before them',
    edits: [
      {
        file: 'native/cuda/sampling/candidates.h',
        search: 'return target - bin.before;',
        replace: 'return target;',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: edits of a tile that are read before they are made',
    edits: [
      {
        file: 'native/cuda/sampling/processed.h',
        search:
          '    __syncwarp();\n    GPU_UNROLL\n    for (int i = 0; i < kSliceValues; ++i) v[i] = values[place_in_tile',
        replace: '    GPU_UNROLL\n    for (int i = 0; i < kSliceValues; ++i) v[i] = values[place_in_tile',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: a missing barrier before few candidates are put in their places',
    edits: [
      {
        file: 'native/cuda/sampling/places.h',
        search: '  __syncthreads();\n  if (own < count) places[before] = place;\n',
        replace: '  if (own < count) places[before] = place;\n',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: states of a split that are counted before all are there',
    edits: [
      {
        file: 'native/cuda/attention/attention_few_wgmma.cu',
        search: "  __syncthreads();  // the block's states are there\n",
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: splits of a merge beyond those that come at once',
    edits: [
      {
        file: 'native/cuda/attention/attention_merge.h',
        search: 'split < splits.end; split += kAtOnce',
        replace: 'split < min(splits.end, splits.begin + kAtOnce); split += kAtOnce',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: "CUDA: a missing barrier before the sums of Hopper's product leave",
    edits: [
      {
        file: 'native/cuda/gemm/matmul_wgmma_block.h',
        search: '      __syncthreads();  // the rows are there, and what is added to them\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: "CUDA: a missing barrier in Hopper's product",
    edits: [
      {
        file: 'native/cuda/gemm/wgmma_bring.h',
        search: '    barrier_wait(&ring.empty[turn.stage], turn.parity);\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: weights are asked for however many are under way',
    edits: [
      {
        file: 'native/cuda/gemm/wgmma_bring.h',
        search: '    under_way.wait(i);\n    barrier_wait(&ring.empty',
        replace: '    barrier_wait(&ring.empty',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: "CUDA: a dropped wait in Hopper's product",
    edits: [
      {
        file: 'native/cuda/gemm/matmul_wgmma_block.h',
        search: '  barrier_wait(&ring.full[i % S::kStages], i / S::kStages & 1);\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: "CUDA: Hopper's product gives a stage back before it has been multiplied",
    edits: [
      {
        file: 'native/cuda/gemm/matmul_wgmma_block.h',
        search: '      give_back<S>(ring, done, i);\n',
        replace: '      give_back<S>(ring, done, i + 1);\n',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: "CUDA: a missing barrier in Hopper's product of the way back",
    edits: [
      {
        file: 'native/cuda/gemm/matmul_transposed_wgmma_block.h',
        search: '    barrier_wait(&ring.empty[stage], (round & 1) ^ 1);\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: "CUDA: a dropped wait in Hopper's product of the way back",
    edits: [
      {
        file: 'native/cuda/gemm/matmul_transposed_wgmma_block.h',
        search: '    barrier_wait(&ring.full[i % S::kStages], i / S::kStages & 1);\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: "CUDA: Hopper's product of the way back gives a stage back before it has been multiplied",
    edits: [
      {
        file: 'native/cuda/gemm/matmul_transposed_wgmma_block.h',
        search: '    give_back<S>(ring, done, i);\n',
        replace: '    give_back<S>(ring, done, i + 1);\n',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: "CUDA: an off-by-one page in Hopper's attention",
    edits: [
      {
        file: 'native/cuda/attention/attention_wgmma.h',
        search: 'const bool wanted = position < end && index < most;',
        replace: 'const bool wanted = position + kPagePositions < end && index < most;',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: decode on Hopper brings keys to a slot that other warps still read',
    edits: [
      {
        file: 'native/cuda/attention/attention_wgmma.cu',
        search: '  barrier_wait(&team.control.empty[turn.stage], turn.parity ^ 1);\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: decode on Hopper does not wait for its keys and values',
    edits: [
      {
        file: 'native/cuda/attention/attention_wgmma.cu',
        search: '    barrier_wait(&team.control.full[turn.stage], turn.parity);\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: decode on Hopper multiplies values that nobody wrote',
    edits: [
      {
        file: 'native/cuda/attention/attention_wgmma.cu',
        search: 'if (span.end < first + kTileKeys) clear_page_end',
        replace: 'if (span.end + kPagePositions < first + kTileKeys) clear_page_end',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: decode on Hopper takes a key for seen that is not',
    edits: [
      {
        file: 'native/cuda/attention/attention_wgmma.cu',
        search: 'first + kTileKeys <= end - kTileRows;',
        replace: 'first + kTileKeys <= end + kTileRows;',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: teams of a block take the items of one of them',
    edits: [
      {
        file: 'native/cuda/attention/attention_wgmma.cu',
        search: 'int number = team.number * int(gridDim.x) + int(blockIdx.x);',
        replace: 'int number = int(blockIdx.x);',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: decode on Hopper passes an item over',
    edits: [
      {
        file: 'native/cuda/attention/attention_wgmma.cu',
        search: 'number = P::kTeams * int(gridDim.x) + __shfl_sync',
        replace: 'number = P::kTeams * int(gridDim.x) + 1 + __shfl_sync',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: decode on Hopper gives an item to warps that still read the one before it there',
    edits: [
      {
        file: 'native/cuda/attention/attention_wgmma.cu',
        search: '  barrier_wait(&c.taken[turn.stage], turn.parity ^ 1);\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: items that decode on Hopper has given out are not counted anew',
    edits: [
      {
        file: 'native/cuda/attention/attention_wgmma.cu',
        search: '    if (lane_number() == 0 && claim == list.count - 1) *claims = 0;\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU engine: items are counted before a batch is padded',
    edits: [
      {
        file: 'native/src/device/batch.cc',
        search: '  if (size) pad(*size, rows, tiles);\n  cuda::number_items(tiles.split);\n',
        replace: '  cuda::number_items(tiles.split);\n  if (size) pad(*size, rows, tiles);\n',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: arrivals of splits are not counted anew',
    edits: [
      {
        file: 'native/cuda/attention/attention_merge.h',
        search: '  if (last) *arrivals = 0;  // for the next launch\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: a split is merged before it is there',
    edits: [
      {
        file: 'native/cuda/attention/attention_merge.h',
        search: 'count_up(arrivals) == blocks - 1',
        replace: 'count_up(arrivals) == blocks - 2',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: merged splits are weighed by the largest score with them, not before them',
    edits: [
      {
        file: 'native/cuda/attention/attention_merge.h',
        search: 'lane == 0 ? largest : below;',
        replace: 'top;',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: "CUDA: keys are brought over those that Hopper's prefill attention has not read",
    edits: [
      {
        file: 'native/cuda/attention/attention_prefill_wgmma.cu',
        search: '      barrier_wait(&empty[turn.stage], turn.parity ^ 1);\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: "CUDA: a dropped wait for the next keys in Hopper's prefill attention",
    edits: [
      {
        file: 'native/cuda/attention/attention_prefill_wgmma.cu',
        search: '    if (more) barrier_wait(&barriers.full[next.stage], next.parity);\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: "CUDA: Hopper's prefill attention does not mask a tile's last key",
    edits: [
      {
        file: 'native/cuda/attention/attention_prefill_wgmma.cu',
        search: 'first + kTileKeys - 1 <= lowest',
        replace: 'first + kTileKeys - 2 <= lowest',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: "CUDA: Hopper's prefill attention does not mask the key before a window",
    edits: [
      {
        file: 'native/cuda/attention/attention_prefill_wgmma.cu',
        search: 'highest - first < a.window',
        replace: 'highest - first <= a.window',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: a wrong split boundary',
    edits: [
      {
        file: 'native/cuda/attention/attention_rows.h',
        search: 'const int end = min(tile.first_position + tile.tokens, begin + kSplitPositions);',
        replace: 'const int end = min(tile.first_position + tile.tokens, begin + kSplitPositions - 1);',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: no barrier before the next keys of a gradient of attention',
    edits: [
      {
        file: 'native/cuda/attention/attention_backward.cu',
        search: '    __syncthreads();  // all are done with the keys\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: a prefix is a row too long in a gradient of attention',
    edits: [
      {
        file: 'native/cuda/attention/backward_mask.h',
        search: 'key < query.prefix_end);',
        replace: 'key <= query.prefix_end);',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: "CUDA: keys come before all are done with those before in Hopper's gradient of attention",
    edits: [
      {
        file: 'native/cuda/attention/attention_backward_wgmma.cu',
        search: '    barrier_wait(&m.empty[turn.stage], turn.parity ^ 1);\n    for (int key',
        replace: '    for (int key',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: "CUDA: queries come before all are done with those before in Hopper's gradient of attention",
    edits: [
      {
        file: 'native/cuda/attention/attention_backward_keys_wgmma.cu',
        search: '      barrier_wait(&m.empty[turn.stage], turn.parity ^ 1);\n      write_marks',
        replace: '      write_marks',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: "CUDA: a dropped wait for tiles in Hopper's gradient of attention",
    edits: [
      {
        file: 'native/cuda/attention/attention_backward_wgmma.h',
        search: '    barrier_wait(&m.full[at.turn.stage], at.turn.parity);\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: "CUDA: a tile is held while others are passed in Hopper's gradient of attention",
    edits: [
      {
        file: 'native/cuda/attention/attention_backward_wgmma.h',
        search: '    at.give_before_back(m);\n    give_tile_back(m, at.turn);\n',
        replace: '    give_tile_back(m, at.turn);\n',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: "CUDA: what half of the queries see is not masked in Hopper's gradient of attention",
    edits: [
      {
        file: 'native/cuda/attention/attention_backward_keys_wgmma.cu',
        search:
          'for (int at = int(threadIdx.x) % kWarp; at < kBackwardTile; at += kWarp) {\n    const int row = first + at;\n    PackedToken',
        replace:
          'for (int at = int(threadIdx.x) % kWarp; at < kWarp; at += kWarp) {\n    const int row = first + at;\n    PackedToken',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: "CUDA: a query sees the key before its sequence in Hopper's gradient of attention",
    edits: [
      {
        file: 'native/cuda/attention/backward_mask.h',
        search: '(first >= query.own_first && end <= q + 1)',
        replace: '(first + 1 >= query.own_first && end <= q + 1)',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: "CUDA: Hopper's gradient of attention forgets the other heads of a group",
    edits: [
      {
        file: 'native/cuda/attention/attention_backward_keys_wgmma.cu',
        search: 'for (; head < end_head; ++head) {',
        replace: 'for (; head < end_head; head = end_head) {',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: rows of a tile take the adapter of its first row',
    edits: [
      {
        file: 'native/cuda/lora/lora_launch.h',
        search: 'lane >= rows || own != wanted',
        replace: 'lane >= rows',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: no barrier before the segments of A x are added',
    edits: [
      {
        file: 'native/cuda/lora/lora_sums.h',
        search: '  __syncthreads();  // all segments are there\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: the rest of u is left out of what an adapter adds',
    edits: [
      {
        file: 'native/cuda/lora/lora_outputs.h',
        search: '    mma_m16n8k16(sums.at[j], outputs, u.rest);\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: a segment of what adapters beside a product add is left out',
    edits: [
      {
        file: 'native/cuda/lora/lora_part.cu',
        search: 'lora::sum_in_order(segments)',
        replace: '(lora::sum_in_order(segments) - segments[1])',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: no barrier before u of a tile beside a product is used',
    edits: [
      {
        file: 'native/cuda/lora/lora_part.cu',
        search: '    __syncthreads();  // u of the tile is there\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: ranks that there are not are added beside a product',
    edits: [
      {
        file: 'native/cuda/lora/lora_part.cu',
        search: 'if (own < w_[p].rank) factors',
        replace: 'if (own <= w_[p].rank) factors',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: rows of a tile have A x of the first beside a product',
    edits: [
      {
        file: 'native/cuda/lora/lora_part.cu',
        search: 'sums_of(a_, max(row_, 0), which_ + p, 0)',
        replace: 'sums_of(a_, max(rows_[0], 0), which_ + p, 0)',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: an activation with adapters forgets what up gets',
    edits: [
      {
        file: 'native/cuda/lora/lora_part.cu',
        search: 'sums[1].at[c] + added[1].at[c]',
        replace: 'sums[1].at[c]',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: adapters beside a product are added before their A x is there',
    edits: [
      {
        file: 'native/cuda/lora/lora_part.cu',
        search: '    load(next);\n    wait_for_inputs();\n',
        replace: '    load(next);\n    let_next_begin();\n',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: rows without an adapter have +0 added beside a product',
    edits: [
      {
        file: 'native/cuda/lora/lora_part.cu',
        search: 'to[output] = -0.0f;',
        replace: 'to[output] = 0.0f;',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: adapters within a product use factors that are on their way',
    edits: [
      {
        file: 'native/cuda/lora/lora_within_block.h',
        search: 'cp_async_wait<kOfOne - 1>();',
        replace: 'cp_async_wait<kOfOne>();',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: adapters within a product bring factors over those in use',
    edits: [
      {
        file: 'native/cuda/lora/lora_within_block.h',
        search: 'if (!ended(next)) bring_factors(next, next_unit);',
        replace: 'if (!ended(next)) bring_factors(next, brought < units_ ? next_unit : used_unit);',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: adapters within a product do not wait for all segments',
    edits: [
      {
        file: 'native/cuda/lora/lora_within_block.h',
        search: '    __syncthreads();  // all segments are there\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: adapters within a product are expanded before u is there',
    edits: [
      {
        file: 'native/cuda/lora/lora_within_block.h',
        search: '    __syncthreads();  // u is there, and',
        replace: '    // u is there, and',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: a tile within a product comes over units of the one before',
    edits: [
      {
        file: 'native/cuda/lora/lora_within_block.h',
        search: '    if (item > block) __syncthreads();  // all are done',
        replace: '    // all are done',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU engine: rows of several adapters share a tile',
    edits: [
      {
        file: 'native/cuda/lora/lora_part.cu',
        search: 'auto [found, fresh] = open.try_emplace(adapter, tiles.size());',
        replace: 'auto [found, fresh] = open.try_emplace(0, tiles.size());',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: lanes activate what others have not handed over yet',
    edits: [
      {
        file: 'native/cuda/lora/lora_part.cu',
        search: "    __syncwarp();  // all lanes' are there\n",
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: blocks that share outputs of adapters leave some out',
    edits: [
      {
        file: 'native/cuda/lora/lora_part.cu',
        search: 'first_ += int(gridDim.y) * kBlockOutputs;',
        replace: 'first_ += 2 * int(gridDim.y) * kBlockOutputs;',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: ranks that there are not are added within a product',
    edits: [
      {
        file: 'native/cuda/lora/lora_within_block.h',
        search: 'rank + own < w_.rank && output < end_',
        replace: 'rank + own <= w_.rank && output < end_',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: the counters of adapters that a gated product waits for stay',
    edits: [
      {
        file: 'native/cuda/gemm/matmul_wgmma_block.h',
        search: ' == added.waiting - 1) added.arrived[0]',
        replace: ' == added.waiting) added.arrived[0]',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: a gated product does not wait for blocks of adapters that come later',
    edits: [
      {
        file: 'native/cuda/gemm/matmul_wgmma_block.h',
        search: '  wait_for_count(added.arrived, added.blocks);\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: a gated product adds what the adapter of its first row gives to all',
    edits: [
      {
        file: 'native/cuda/gemm/matmul_wgmma_block.h',
        search: 'from + token * a.n + half',
        replace: 'from + half',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: blocks of adapters do not arrive where a gated product waits for them',
    edits: [
      {
        file: 'native/cuda/lora/lora_within_block.h',
        search: '  if (threadIdx.x == 0) count_arrival(a.arrived);\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: a block within a product makes only its first tile',
    edits: [
      {
        file: 'native/cuda/lora/lora_within_block.h',
        search: 'item += within.blocks) {',
        replace: 'item += within.blocks + int(a.tile_count) * within.per_tile) {',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: rows without an adapter have +0 added within a product',
    edits: [
      {
        file: 'native/cuda/lora/lora_within_block.h',
        search: 'to[output] = -0.0f;',
        replace: 'to[output] = 0.0f;',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: a product does not begin behind the blocks of its adapters',
    edits: [
      {
        file: 'native/cuda/gemm/matmul_wgmma.cu',
        search: 'block{own % tiles, own / tiles, number}',
        replace: 'block{number % tiles, number / tiles, number}',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU engine: the wanted rows of the last layer do not go back to their places',
    edits: [
      {
        file: 'native/src/device/forward.cc',
        search:
          '  cuda::gather_rows({picked_.data(), h, rest.rows, batch.wanted_places, hidden_.data(), h, batch.rows, h}, stream_.get());\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU engine: the wanted rows of the last layer have the adapters of the first',
    edits: [
      {
        file: 'native/src/device/layers.cc',
        search: 'rest.row_adapters = batch.wanted_adapters;',
        replace: 'rest.row_adapters = batch.row_adapters;',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: fused, a new key lies beside its place',
    edits: [
      {
        file: 'native/cuda/attention/attention_rotate.h',
        search: 'put_four(tile, row, s.pair, pairs[0]);',
        replace: 'put_four(tile, row ^ 1, s.pair, pairs[0]);',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: fused, a new key does not wait for its page',
    edits: [
      {
        file: 'native/cuda/attention/attention_rotate.h',
        search: '  wait(key);\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: fused, no fence behind a new key',
    edits: [
      {
        file: 'native/cuda/attention/attention_rotate.h',
        search: '  shared_writes_fence();\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: fused, no barrier behind rows that attention rotates',
    edits: [
      {
        file: 'native/cuda/attention/attention_few_wgmma.cu',
        search: '  __syncthreads();  // the rows are there, and their key and value\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: fused, what is behind a normed row is left',
    edits: [
      {
        file: 'native/cuda/gemm/matmul_normed.cu',
        search: '  clear_tiles(tiles, end - begin, stages * S::kStageTiles);\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: fused, no meeting before the squares of a row are added',
    edits: [
      {
        file: 'native/cuda/gemm/matmul_normed.cu',
        search: '  meet(&meetings.sums);\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: fused, no fence behind a normed row',
    edits: [
      {
        file: 'native/cuda/gemm/matmul_normed.cu',
        search: '  shared_writes_fence();\n  meet(&meetings.row);',
        replace: '  meet(&meetings.row);',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU engine: fused, a product overwrites the parts that others read',
    edits: [
      {
        file: 'native/src/device/layers.cc',
        search: '  args.workspace += taken;\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU engine: fused, splits overwrite the parts that others read',
    edits: [
      {
        file: 'native/src/device/layers.cc',
        search: '  args.workspace += used;\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU engine: fused, tokens of one sequence rotate beside each other',
    edits: [
      {
        file: 'native/src/device/layers.cc',
        search: ' || batch.rows != batch.runs) return false;',
        replace: ') return false;',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU engine: a product leaves its adapters out',
    edits: [
      {
        file: 'native/src/device/layers_adapters.cc',
        search: '    both->product.adapters = &both->adapters;\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: no barrier between adapters that share a tile of rows',
    edits: [
      {
        file: 'native/cuda/lora/lora_shrink.cu',
        search: '  __syncthreads();  // the rows before have left shared memory\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: the last group of ranks is left out',
    edits: [
      {
        file: 'native/cuda/lora/lora_shrink.cu',
        search: 'if (w.rank <= first_rank) return;',
        replace: 'if (w.rank <= first_rank + kRanks) return;',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: the rest of u is left out of the gradient of a factor',
    edits: [
      {
        file: 'native/cuda/lora/lora_outer.cu',
        search: 'both = {sums[g][c][0] + sums[g][c][2], sums[g][c][1] + sums[g][c][3]};',
        replace: 'both = {sums[g][c][0], sums[g][c][1]};',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: no barrier before the rows that a warp has brought for the gradient of a factor are used',
    edits: [
      {
        file: 'native/cuda/lora/lora_outer.cu',
        search: '      __syncwarp();  // the tile is there for all lanes',
        replace: '      // the tile is there for all lanes',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'CUDA: gradients of factors share rows that are not the same',
    edits: [
      {
        file: 'native/cuda/lora/lora_outer.cu',
        search: 'return a.x == b.x && a.ldx == b.ldx',
        replace: 'return a.ldx == b.ldx',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU trainer: chunks keep A x in one place',
    edits: [
      {
        file: 'native/src/device/train_tape.cc',
        search: 'tap.shrunk = kept.shrunk.data() + chunk.first * most_rank_;',
        replace: 'tap.shrunk = kept.shrunk.data();',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU trainer: projections of a product share their u on the way back',
    edits: [
      {
        file: 'native/src/device/train_backward.cc',
        search: 'u_.data() + lora.count * sizes_.rows',
        replace: 'u_.data() + 0 * sizes_.rows',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU trainer: an MLP is added to what the residual stream held in the row before',
    edits: [
      {
        file: 'native/src/device/layers.cc',
        search: 'Product::kDown, layer.down, x, out, hidden, leave',
        replace: 'Product::kDown, layer.down, x, out, out, leave',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'GPU trainer: an ending lacks the copy of the last page of its prefix',
    edits: [
      {
        file: 'native/src/device/layers.cc',
        search: '  if (tap) cuda::copy_slots(rope.kv, tap->copies, tap->copy_count, stream_.get());\n',
        replace: '',
      },
    ],
    tests: ['native/test/cuda'],
  },
  {
    name: 'a grammar mask shifted by one word',
    edits: [
      {
        file: 'native/src/simd/tiles_body.h',
        search: 'uint32_t word = bits[first / 32];',
        replace: 'uint32_t word = bits[first / 32 == 0 ? 0 : first / 32 - 1];',
      },
    ],
    tests: ['test/api/structured-output.test.ts'],
  },
  {
    name: 'a forbidden token allowed in the step: an end where the text may not end',
    edits: [
      {
        file: 'native/src/engine/constraint.cc',
        search: '  if (!matcher_.can_end()) return;\n  for',
        replace: '  for',
      },
    ],
    tests: ['test/api/structured-output.test.ts'],
  },
  {
    name: 'an allowed token masked in the step',
    edits: [
      {
        file: 'native/src/engine/constraint.cc',
        search: '  matcher_.fill_mask(mask_.data(), mask_.size());',
        replace: '  matcher_.fill_mask(mask_.data(), mask_.size());\n  mask_[3] = 0;',
      },
    ],
    tests: ['test/api/structured-output.test.ts'],
  },
  {
    name: 'an answer not steered to its end',
    edits: [
      {
        file: 'native/src/engine/constraint.cc',
        search: 'if (!steers_ || room(max_tokens_ - taken_) != Room::kNone) return Verdict::kGoesOn;',
        replace: 'if (matcher_.vocabulary().size() > 0) return Verdict::kGoesOn;',
      },
    ],
    tests: ['test/api/structured-output.test.ts'],
  },
  {
    name: 'the grammar not advanced by tokens that are fed again',
    edits: [
      {
        file: 'src/control/scheduler/sequence.ts',
        search: 'this.constraint?.take(resumeIds);',
        replace: '',
      },
    ],
    tests: ['test/unit/scheduler/jumps.test.ts', 'test/api/structured-output.test.ts'],
  },
  {
    name: 'the grammar not advanced on a jump',
    edits: [
      {
        file: 'native/src/engine/constraint.cc',
        search: 'if (!advance(tokens[count])) break;',
        replace: 'if (tokens[count] < 0) break;',
      },
    ],
    tests: ['test/native/jump-forward.test.ts', 'test/api/structured-output.test.ts'],
  },
  {
    name: 'a jump over a token that a longer one could replace',
    edits: [
      {
        file: 'native/src/engine/constraint.cc',
        search: 'if (first != last) return true;',
        replace: 'if (first != last) return false;',
      },
    ],
    tests: ['test/native/jump-forward.test.ts'],
  },
  {
    name: 'a jump scored from the token itself',
    edits: [
      {
        file: 'src/control/scheduler/sequence.ts',
        search: 'return Math.min(this.known, this.scoreFrom) - 1;',
        replace: 'return this.known - 1;',
      },
    ],
    tests: ['test/unit/scheduler/jumps.test.ts'],
  },
  {
    name: 'large bodies parsed back to back',
    edits: [
      {
        file: 'src/api/middleware/parse-turns.ts',
        search: '}, performance.now() - started);',
        replace: '}, 0);',
      },
    ],
    tests: ['test/unit/api/parse-turns.test.ts'],
  },
  {
    name: 'an answer that waits for its turn not told of the end of its connection',
    edits: [
      {
        file: 'src/api/http-server.ts',
        search: "socket.once('close', close);",
        replace: "socket.once('closed', close);",
      },
    ],
    tests: ['test/unit/api/connections.test.ts'],
  },
  {
    name: 'a load that nobody wants kept',
    edits: [
      {
        file: 'src/control/engine/adapter-calls.ts',
        search: 'if (--known.wanted === 0) this.#cancel(known);',
        replace: 'if (--known.wanted < 0) this.#cancel(known);',
      },
    ],
    tests: ['test/unit/engine/adapter-calls.test.ts'],
  },
  {
    name: 'an artifact of old that was committed taken for one that nobody goes on with',
    edits: [
      {
        file: 'src/control/store/artifact-repository.ts',
        search: "      .where(IS_OPEN)\n      .where('created_at', '<', before)",
        replace: "      .where('created_at', '<', before)",
      },
    ],
    tests: ['test/unit/store/artifacts.test.ts'],
  },
  {
    name: "artifacts of others on the pages of one's own",
    edits: [
      {
        file: 'src/control/store/artifact-repository.ts',
        search: "      .where('entity', '=', entity)\n      .where(IS_PRESENT)",
        replace: '      .where(IS_PRESENT)',
      },
    ],
    tests: ['test/unit/store/artifacts.test.ts'],
  },
  {
    name: 'the version of a deleted artifact given again',
    edits: [
      {
        file: 'src/control/store/artifact-repository.ts',
        search: "      .where('version', 'is', null)\n",
        replace: '',
      },
    ],
    tests: ['test/unit/store/artifacts.test.ts'],
  },
  {
    name: 'files that logs name swept at the start',
    edits: [
      {
        file: 'src/control/store/model-repository.ts',
        search: "      db.selectFrom('trajectory_logs').select('blob_key as key').execute(),\n",
        replace: '',
      },
    ],
    tests: ['test/unit/store/models.test.ts'],
  },
  {
    name: 'a write beside a transaction that becomes part of it',
    edits: [
      {
        file: 'src/control/store/sqlite-client.ts',
        search: '    await before;\n',
        replace: '',
      },
    ],
    tests: ['test/unit/store/sqlite-client.test.ts'],
  },
  {
    name: 'a snapshot named before its files are in place',
    edits: [
      {
        file: 'src/control/training/jobs/stored-ports.ts',
        search:
          '      await draft.seal();\n      const before = await this.#jobs.setSnapshot(jobId, draft.key, sha256);',
        replace:
          '      const before = await this.#jobs.setSnapshot(jobId, draft.key, sha256);\n      await draft.seal();',
      },
    ],
    tests: ['test/unit/training/stored-ports.test.ts'],
  },
  {
    name: 'files of a deleted step gone before requests that were let in have loaded them',
    edits: [
      {
        file: 'src/control/training/models/model-service.ts',
        search: 'ADAPTER_GRACE_MS).unref()',
        replace: '0).unref()',
      },
    ],
    tests: ['test/unit/training/model-files.test.ts'],
  },
  {
    name: 'a disk that is filled by making models and deleting them',
    edits: [
      {
        file: 'src/control/training/models/model-service.ts',
        search: 'this.#removeLater(entity, adapters, result.checkpointBytes);',
        replace: 'this.#removeLater(entity, adapters, 0);',
      },
    ],
    tests: ['test/unit/training/preview-quota.test.ts'],
  },
  {
    name: 'a look at changed keys that fails taken for done',
    edits: [
      {
        file: 'src/cli/key-setup.ts',
        search: '    if (now === version) return;\n',
        replace: '    if (now === version) return;\n    version = now;\n',
      },
    ],
    tests: ['test/unit/cli/key-setup.test.ts'],
  },
  {
    name: 'the chunks of a pull put in one place',
    edits: [
      {
        file: 'src/control/transfer/kv-transfers.ts',
        search: '        written += blocks;\n',
        replace: '',
      },
    ],
    tests: ['test/unit/transfer/chunks.test.ts'],
  },
  {
    name: 'a pull of KV blocks shared with another tenant that names them',
    edits: [
      {
        file: 'src/control/transfer/kv-transfers.ts',
        search: '[handle, tenant, adapter?.version',
        replace: '[handle, adapter?.version',
      },
    ],
    tests: ['test/unit/transfer/transfer.test.ts'],
  },
  {
    name: 'factors of low rank added once per block of rows',
    edits: [
      {
        file: 'native/src/ops/matmul.cc',
        search: 'if (after && row + rows == m) after(p);',
        replace: 'if (after) after(p);',
      },
    ],
    tests: ['native/test'],
  },
  {
    name: 'a matrix of a cache taken for another of as many bytes',
    edits: [
      {
        file: 'native/src/model/weight_cache.cc',
        search: 'record.rows == rows && record.columns == columns',
        replace: 'record.columns == columns',
      },
    ],
    tests: ['native/test'],
  },
  {
    name: 'an adapter adds to the gates of the first block of rows alone',
    edits: [
      {
        file: 'native/src/ops/lora.cc',
        search: '*from = std::lower_bound(task.rows, end, first_row);',
        replace: '*from = task.rows;',
      },
    ],
    tests: ['native/test'],
  },
  {
    name: 'a gate is handed on with itself',
    edits: [
      {
        file: 'native/src/ops/quantised_matmul.cc',
        search: 'w.format(half + p), w.panel_data(half + p)',
        replace: 'w.format(p), w.panel_data(p)',
      },
    ],
    tests: ['native/test'],
  },
  {
    name: 'what a broken sequence left behind the outputs of attention multiplied',
    edits: [
      {
        file: 'native/src/model/forward.cc',
        search: 'if (padded > spec.query_size()) {',
        replace: 'if (padded < spec.query_size()) {',
      },
    ],
    tests: ['native/test'],
  },
  {
    name: 'a row kept for backward whose forward pass has failed',
    edits: [
      {
        file: 'native/src/train/tape.cc',
        search: '  ready = false;\n  row_ = std::move(row);',
        replace: '  row_ = std::move(row);',
      },
    ],
    tests: ['native/test'],
  },
  {
    name: 'large factors stepped in overlapping blocks',
    edits: [
      {
        file: 'native/src/train/factors.cc',
        search: 'int64_t n = std::min(kStepBlock, int64_t(half->value.size()) - first);',
        replace: 'int64_t n = int64_t(half->value.size()) - first;',
      },
    ],
    tests: ['native/test'],
  },
  {
    name: 'a name repeated within one token allowed',
    edits: [
      {
        file: 'native/src/grammar/mask_walk.cc',
        search: 'for (int32_t token : lex.with_strings) judge(thread, token);',
        replace: '',
      },
    ],
    tests: ['native/test'],
  },
  {
    name: 'the time of a compilation not looked at',
    edits: [
      {
        file: 'native/src/grammar/budget.h',
        search: 'if (Clock::now() > deadline_)',
        replace: 'if (false)',
      },
    ],
    tests: ['native/test'],
  },
  {
    name: 'a step lost that could not be queued when its thread was closed',
    edits: [
      {
        file: 'native/src/addon/step_thread.h',
        search: '    if (closed_) return false;\n    waiting_.push_front(task);',
        replace: '    waiting_.push_front(task);',
      },
    ],
    tests: ['native/test'],
  },
  {
    name: 'any handle taken for an adapter',
    edits: [
      {
        file: 'native/src/addon/tagged.h',
        search: ' || !matches ||',
        replace: ' ||',
      },
    ],
    tests: ['test/boundary/native-addon.test.ts'],
  },
  {
    name: 'masks written into arrays of any type',
    edits: [
      {
        file: 'native/src/addon/grammar_handle.cc',
        search: 'type != napi_int32_array) {',
        replace: 'type == napi_uint32_array) {',
      },
    ],
    tests: ['test/boundary/native-addon.test.ts'],
  },
  {
    name: 'x-api-key taken on every path',
    edits: [
      {
        file: 'src/api/middleware/auth.ts',
        search: 'const takesHeader = takesApiKeyHeader(ctx.path);',
        replace: 'const takesHeader = true;',
      },
    ],
    tests: ['test/unit/api/messages.test.ts'],
  },
  {
    name: 'responses that take too many bytes stay',
    edits: [
      {
        file: 'src/control/store/response-repository.ts',
        search: 'where leaving.count > 0 or leaving.bytes > 0',
        replace: 'where leaving.count > 0',
      },
    ],
    tests: ['test/unit/store/responses.test.ts'],
  },
  {
    name: 'content before a mark placed as if the mark were not there',
    edits: [
      {
        file: 'src/control/sessions/parsers/delta-writer.ts',
        search: 'return this.#input.taken - behind - text.length;',
        replace: 'return this.#input.taken - text.length;',
      },
    ],
    tests: ['test/unit/parsers/chunking.test.ts', 'test/unit/parsers/json-formats.test.ts'],
  },
  {
    name: 'cached tokens of a message counted twice',
    edits: [
      {
        file: 'src/api/responses/message.ts',
        search: 'input_tokens: promptTokens - cachedTokens',
        replace: 'input_tokens: promptTokens',
      },
    ],
    tests: ['test/unit/api/messages.test.ts'],
  },
  {
    name: 'two calls of a message taken for one',
    edits: [
      {
        file: 'src/api/responses/message-blocks.ts',
        search: "this.#open?.kind !== 'call' || this.#open.index !== index",
        replace: "this.#open?.kind !== 'call'",
      },
    ],
    tests: ['test/unit/api/message-blocks.test.ts'],
  },
];
