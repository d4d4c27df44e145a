import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import type { GgufHeader } from '../../../src/control/models/gguf/header.ts';
import { readGgufTokenizer } from '../../../src/control/models/gguf/tokenizer.ts';
import { readTokenizerFiles } from '../../../src/control/models/tokenizer-files.ts';
import { loadPromptRenderer } from '../../../src/control/sessions/load-renderer.ts';
import { checkToolFormat, chooseParsers } from '../../../src/control/sessions/reply-parser.ts';
import { byteTokenizer, writeModel } from '../models/model-directory.ts';
import { input, REPLY } from './inputs.ts';

const PLAIN = 'plain {{ messages[0].content }}';
const TOOLS = '<tool_call> {{ messages[0].content }} {{ tools | length }}';
const NAMED = [
  { name: 'default', template: PLAIN },
  { name: 'tool_use', template: TOOLS },
];

function directory(template: unknown, files: Record<string, string> = {}): string {
  const path = writeModel({ tokenizerConfig: { ...byteTokenizer().config, chat_template: template } });
  mkdirSync(join(path, 'additional_chat_templates'));
  for (const [name, text] of Object.entries(files)) writeFileSync(join(path, name), text);
  return path;
}

async function texts(modelPath: string): Promise<string[]> {
  const renderer = await loadPromptRenderer({ modelPath, maxModelLen: 64 });
  const messages = [{ role: 'user', content: 'hi' }];
  const options = {
    addGenerationPrompt: false,
    continueFinalMessage: false,
    addSpecialTokens: false,
    documents: null,
    templateKwargs: {},
  };
  return [null, [{ type: 'function', function: { name: 'f' } }]].map(
    (tools) => renderer.render({ kind: 'chat', messages, render: { ...options, tools, chatTemplate: null } }).text,
  );
}

describe('the template of chats with tools', () => {
  const both = ['plain hi', '<tool_call> hi 1'];

  it('is the one named tool_use', async () => {
    expect(await texts(directory(NAMED))).toEqual(both);
    expect(await texts(directory(NAMED.slice(0, 1)))).toEqual(['plain hi', 'plain hi']);
    await expect(texts(directory(NAMED.slice(1)))).rejects.toThrow("has no template named 'default'");
  });

  it('is a file of its own, over the list', async () => {
    const files = { 'chat_template.jinja': PLAIN, 'additional_chat_templates/tool_use.jinja': TOOLS };
    expect(await texts(directory([{ name: 'tool_use', template: 'old' }], files))).toEqual(both);
    expect(await texts(directory(NAMED, { 'chat_template.jinja': PLAIN }))).toEqual(['plain hi', 'plain hi']);
  });

  it('stands under a key of its own in a GGUF file', () => {
    const metadata = {
      'tokenizer.ggml.model': 'llama',
      'tokenizer.ggml.tokens': ['<unk>', '<s>', '</s>', 'a'],
      'tokenizer.chat_template': PLAIN,
      'tokenizer.chat_template.tool_use': TOOLS,
    };
    const header: GgufHeader = { path: '', file: 'model.gguf', size: 0, metadata, tensors: new Map(), dataOffset: 0 };
    const { chatTemplate, toolTemplate } = readGgufTokenizer(header, 4).files;
    expect([chatTemplate, toolTemplate]).toEqual([PLAIN, TOOLS]);
  });

  it('tells the format of calls', async () => {
    const found = async (template: unknown): Promise<unknown> =>
      chooseParsers({}, await readTokenizerFiles(directory(template), 260));
    expect(await found(NAMED)).toEqual({ tool: 'hermes', reasoning: null });
    expect(await found([NAMED[0], { name: 'tool_use', template: '[TOOL_CALLS]' }])).toEqual({
      tool: 'mistral',
      reasoning: null,
    });
    expect(await found(PLAIN)).toEqual({ tool: null, reasoning: null });
  });

  it('is not blamed where the server was told to read no calls', () => {
    const parsers = chooseParsers({ toolParser: null }, { chatTemplate: TOOLS, toolTemplate: null });
    const reply = { ...REPLY, tools: 'auto' as const, needsToolFormat: true };
    const asked = () => checkToolFormat({ ...input(), reply }, parsers);
    expect(asked).toThrow(
      '"auto" tool choice requires --tool-call-parser to be set: the format of the calls is not known.',
    );
  });
});
