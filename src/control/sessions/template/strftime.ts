/** Python's datetime.strftime for the directives that chat templates use, in English whatever the machine's locale. */
const DAYS = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];
const MONTHS = [
  'January',
  'February',
  'March',
  'April',
  'May',
  'June',
  'July',
  'August',
  'September',
  'October',
  'November',
  'December',
];

function two(value: number): string {
  return String(value).padStart(2, '0');
}

function dayOfYear(date: Date): number {
  const first = Date.UTC(date.getFullYear(), 0, 1);
  return Math.round((Date.UTC(date.getFullYear(), date.getMonth(), date.getDate()) - first) / 86_400_000) + 1;
}

const DIRECTIVES: Readonly<Record<string, (date: Date) => string>> = {
  Y: (date) => String(date.getFullYear()),
  y: (date) => two(date.getFullYear() % 100),
  m: (date) => two(date.getMonth() + 1),
  d: (date) => two(date.getDate()),
  B: (date) => MONTHS[date.getMonth()] ?? '',
  b: (date) => (MONTHS[date.getMonth()] ?? '').slice(0, 3),
  A: (date) => DAYS[date.getDay()] ?? '',
  a: (date) => (DAYS[date.getDay()] ?? '').slice(0, 3),
  H: (date) => two(date.getHours()),
  I: (date) => two(date.getHours() % 12 || 12),
  M: (date) => two(date.getMinutes()),
  S: (date) => two(date.getSeconds()),
  p: (date) => (date.getHours() < 12 ? 'AM' : 'PM'),
  e: (date) => String(date.getDate()).padStart(2),
  h: (date) => (MONTHS[date.getMonth()] ?? '').slice(0, 3),
  j: (date) => String(dayOfYear(date)).padStart(3, '0'),
  w: (date) => String(date.getDay()),
  u: (date) => String(date.getDay() || 7),
  f: (date) => `${String(date.getMilliseconds()).padStart(3, '0')}000`,
  C: (date) => two(Math.floor(date.getFullYear() / 100)),
  F: (date) => strftime(date, '%Y-%m-%d'),
  D: (date) => strftime(date, '%m/%d/%y'),
  x: (date) => strftime(date, '%m/%d/%y'),
  T: (date) => strftime(date, '%H:%M:%S'),
  X: (date) => strftime(date, '%H:%M:%S'),
  R: (date) => strftime(date, '%H:%M'),
  r: (date) => strftime(date, '%I:%M:%S %p'),
  c: (date) => strftime(date, '%a %b %e %H:%M:%S %Y'),
  // A time without a zone, as transformers asks for it.
  Z: () => '',
  z: () => '',
  n: () => '\n',
  t: () => '\t',
  '%': () => '%',
};

/** `%-d` drops the leading zero; an unknown directive stays as it is. */
export function strftime(date: Date, format: string): string {
  return format.replace(/%(-?)([A-Za-z%])/g, (whole, dash: string, name: string) => {
    const text = Object.hasOwn(DIRECTIVES, name) ? DIRECTIVES[name]?.(date) : undefined;
    if (text === undefined) return whole;
    return dash === '-' ? text.replace(/^[0 ]+(?=\d)/, '') : text;
  });
}
