/** Messages as clients write them to messages as templates read them. */
import { textKey, textPart } from '../../control/sessions/content-parts.ts';
import type { ChatMessage, ContentPart } from '../../control/sessions/session.ts';
import type { MessagePart, RequestMessage } from '../../schemas/chat-completion.ts';
import { shorten } from '../../schemas/shorten.ts';
import { ApiError } from '../errors.ts';

export const MEDIA_PARTS: ReadonlySet<string> = new Set([
  'image_url',
  'image_pil',
  'image_embeds',
  'input_image',
  'audio_url',
  'audio_embeds',
  'input_audio',
  'video_url',
  'file',
  'input_file',
]);

export function toMessages(messages: RequestMessage[]): ChatMessage[] {
  return messages.map(toMessage);
}

function toMessage(message: RequestMessage, index: number): ChatMessage {
  const { content, name, reasoning_content: oldReasoning, ...rest } = message;
  const result: ChatMessage = { ...rest, role: message.role, content: toContent(content, index) };
  if (name !== undefined && name !== null) result.name = name;
  if (oldReasoning !== undefined) result['reasoning'] = rest['reasoning'] ?? oldReasoning;
  return result;
}

function toContent(content: RequestMessage['content'], index: number): ChatMessage['content'] {
  if (content === undefined || content === null || typeof content === 'string') return content ?? null;
  return content.flatMap((part) => toPart(part, index));
}

/** A text part without text is skipped. */
function toPart(part: string | MessagePart, index: number): ContentPart[] {
  if (typeof part === 'string') return [{ type: 'text', text: part }];
  const key = textKey(part.type);
  if (key === undefined) throw refusePart(part.type, index);
  const text = part[key];
  return typeof text === 'string' ? [textPart(part, text)] : [];
}

function refusePart(type: string, index: number): ApiError {
  if (MEDIA_PARTS.has(type)) {
    const message = `This model takes text only: content part type '${type}' in messages.${index} is not supported.`;
    return new ApiError('invalid_parameter', message, 'type');
  }
  return new ApiError('invalid_parameter', `Unsupported chat content part type: '${shorten(type, 64)}'`, 'type');
}
