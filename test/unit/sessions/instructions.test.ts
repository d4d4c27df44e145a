import { describe, expect, it } from 'vitest';
import type { ChatMessage } from '../../../src/control/sessions/session.ts';
import { render, renderer, specials, user } from './renderer-fixture.ts';

describe('developer and system messages', () => {
  const messages: ChatMessage[] = [{ role: 'developer', content: 'd' }, user('q')];
  it('are system messages to a template that knows only those', async () => {
    const systems = "{% for m in messages %}{% if m.role == 'system' %}[{{ m.content }}]{% endif %}{% endfor %}";
    expect((await render(systems, messages)).text).toBe('[d]');
  });
  it('and stay as they are where the template knows them, or every role', async () => {
    const knows = "{% for m in messages %}{{ m.role in ['system', 'developer'] }}{{ m.role }};{% endfor %}";
    expect((await render(knows, messages)).text).toBe('Truedeveloper;Falseuser;');
    expect((await render('{% for m in messages %}{{ m.role }};{% endfor %}', messages)).text).toBe('developer;user;');
  });
  describe('and a template that takes one system message, at the beginning', () => {
    const strict =
      "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('At the beginning.') }}{% endif %}" +
      '[{{ m.role }}:{{ m.content }}]{% endfor %}';
    const [d] = messages as [ChatMessage];
    const system: ChatMessage = { role: 'system', content: [{ type: 'text', text: 's' }] };
    const reply: ChatMessage = { role: 'assistant', content: 'r' };
    it('are joined with the others where it refuses them', async () => {
      expect((await render(strict, [system, d, user('q')])).text).toBe('[system:s\n\nd][user:q]');
      expect((await render(strict, [user('q'), d, user('p')])).text).toBe('[system:d][user:q][user:p]');
      const { text } = await render(strict, [system, user('q'), d, reply], { continueFinalMessage: true });
      expect(text).toBe('[system:s\n\nd][user:q][assistant:r');
      expect(specials((await render(strict, [system, { ...d, content: '<s>' }, user('q')])).ids)).toEqual([]);
    });
    it('are so in conversations to be trained on', async () => {
      const chat = {
        messages: [system, d, user('q'), reply],
        tools: null,
        templateKwargs: {},
        continueFinalMessage: false,
      };
      const input = { kind: 'open' as const, chat: { ...chat, slots: [{ message: 3, text: 'r' }] } };
      expect((await renderer(strict)).render(input).text).toMatch(/^\[system:s\n\nd\]\[user:q\]\[assistant:.\]$/u);
    });
    it('are so too where there are system messages alone, and where they end the conversation', async () => {
      expect((await render(strict, [system, user('q'), system, user('p')])).text).toBe(
        '[system:s\n\ns][user:q][user:p]',
      );
      expect((await render(strict, [user('q'), reply, user('p'), system])).text).toBe(
        '[system:s][user:q][assistant:r][user:p]',
      );
      expect((await render(strict, [system, system])).text).toBe('[system:s\n\ns]');
    });
    it('are not touched where one of them is to be continued, or where that changes nothing', async () => {
      const options = { continueFinalMessage: true, addGenerationPrompt: false };
      await expect(render(strict, [user('q'), d], options)).rejects.toThrow('At the beginning.');
      const never = "{% for m in messages %}{{ raise_exception('No ' ~ m.role) if m.role == 'system' }}{% endfor %}";
      await expect(render(never, [user('q'), system])).rejects.toThrow('No system');
    });
  });
});
