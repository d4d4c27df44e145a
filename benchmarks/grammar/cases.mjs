/** The schemas of the JSON Schema Test Suite with the valid instances of each, as the tokenizer spells them. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';

const DRAFTS = ['draft7', 'draft2020-12'];
/** Formats and contents as assertions: both drafts leave them to the implementation. */
const LEFT_OUT = new Set(['format-assertion.json', 'optional/content.json']);

function filesOf(root) {
  return ['', 'optional'].flatMap((folder) =>
    readdirSync(path.join(root, folder))
      .map((name) => path.join(folder, name))
      .filter((name) => name.endsWith('.json') && !LEFT_OUT.has(name))
      .sort(),
  );
}

/** [{ name, draft7, schema, texts }]; `texts` are compact and indented spellings of the valid instances. */
export function suiteCases(data) {
  const suite = path.join(data, 'suites/JSON-Schema-Test-Suite/tests');
  if (!existsSync(suite))
    throw new Error(`There is no JSON-Schema-Test-Suite in ${data} (--data DIR or TANDEM_SHARED_DATA).`);
  const cases = [];
  for (const draft of DRAFTS) {
    for (const file of filesOf(path.join(suite, draft))) {
      for (const group of JSON.parse(readFileSync(path.join(suite, draft, file), 'utf8'))) {
        const valid = group.tests.filter((test) => test.valid).map((test) => test.data);
        const texts = valid.flatMap((value) => [JSON.stringify(value), JSON.stringify(value, null, 2)]);
        cases.push({
          name: `${draft}/${file}: ${group.description}`,
          draft7: draft === 'draft7',
          schema: JSON.stringify(group.schema),
          texts: [...new Set(texts)],
        });
      }
    }
  }
  return cases;
}
