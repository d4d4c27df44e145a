/** The peer: XGrammar as WebAssembly; any white space, further properties where the schema does not forbid them. */
import { readFileSync } from 'node:fs';
import Module from 'node:module';
import path from 'node:path';
import { ensurePeers } from '../engine/peers.mjs';

export const XGRAMMAR = 'xgrammar (@mlc-ai/web-xgrammar 0.1.27)';
const PACKAGE = '@mlc-ai/web-xgrammar';

/** The package calls itself an ES module and holds a CommonJS one. */
function load() {
  const file = path.resolve(import.meta.dirname, '../peers/node_modules', PACKAGE, 'lib/index.js');
  const module = new Module(file);
  module.filename = file;
  module._compile(readFileSync(file, 'utf8'), file);
  return module.exports;
}

export class XGrammar {
  #library;
  #compiler;

  #vocabulary;
  #end;

  static async create(vocabulary, end) {
    ensurePeers(PACKAGE);
    const made = new XGrammar();
    made.#vocabulary = vocabulary;
    made.#end = end;
    await made.#start();
    return made;
  }

  async #start() {
    this.#library = load();
    const { TokenizerInfo, GrammarCompiler } = this.#library;
    const size = this.#vocabulary.length;
    const info = await TokenizerInfo.createTokenizerInfo(this.#vocabulary, 'byte_level', false, size, [this.#end]);
    // No cache: every compilation is one.
    this.#compiler = await GrammarCompiler.createGrammarCompiler(info, false);
  }

  /** Null where the schema is refused: that ends the whole module, so a fresh one takes over. */
  async compile({ schema }) {
    const start = performance.now();
    try {
      const grammar = await this.#compiler.compileJSONSchema(schema, true, undefined, undefined, false);
      return { grammar, micros: (performance.now() - start) * 1000 };
    } catch {
      await this.#start();
      return null;
    }
  }

  async visit({ grammar }, ids) {
    const matcher = await this.#library.GrammarMatcher.createGrammarMatcher(grammar);
    const micros = [];
    try {
      for (let i = 0; i <= ids.length; i++) {
        const start = performance.now();
        await matcher.getNextTokenBitmask();
        micros.push((performance.now() - start) * 1000);
        if (i < ids.length && !matcher.acceptToken(ids[i])) break;
      }
    } finally {
      matcher.dispose();
    }
    return micros;
  }

  release({ grammar }) {
    grammar.dispose();
  }
}
