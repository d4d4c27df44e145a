/** Tandem's side: compiling and masks, through the same calls that serving makes. */
import { loadNative } from '../../dist/control/engine/native.js';
import { ACCEPT, compileGrammar, GENERATE, GrammarError } from '../../dist/control/grammar/compile.js';
import { createVocabulary } from '../../dist/control/grammar/vocabulary.js';

export class Tandem {
  #addon = loadNative();
  #vocabulary;
  #mask;
  #options;

  static async create(table, end, mode) {
    const made = new Tandem();
    made.#options = mode === 'accept' ? ACCEPT : GENERATE;
    made.#vocabulary = await createVocabulary(made.#addon, table, [end]);
    made.#mask = new Int32Array(Math.ceil(table.size / 32));
    return made;
  }

  /** Null where the schema is refused. */
  async compile({ schema, draft7 }) {
    const start = performance.now();
    try {
      const source = { kind: 'json_schema', text: schema };
      const grammar = await compileGrammar(this.#addon, source, { ...this.#options, draft7 });
      return { grammar, micros: (performance.now() - start) * 1000, own: grammar.micros };
    } catch (error) {
      if (error instanceof GrammarError) return null;
      throw error;
    }
  }

  /** Micros of the mask before each token and at the end, up to the first token that is refused. */
  async visit({ grammar }, ids) {
    const matcher = grammar.createMatcher(this.#vocabulary);
    const micros = [];
    for (let i = 0; i <= ids.length; i++) {
      const start = performance.now();
      matcher.fillMask(this.#mask);
      micros.push((performance.now() - start) * 1000);
      if (i < ids.length && !matcher.advance(ids[i])) break;
    }
    matcher.release();
    return micros;
  }

  release({ grammar }) {
    grammar.release();
  }
}
