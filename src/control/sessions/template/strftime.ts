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
  '%': () => '%',
};

/** `%-d` drops the leading zero; an unknown directive stays as it is. */
export function strftime(date: Date, format: string): string {
  return format.replace(/%(-?)([A-Za-z%])/g, (whole, dash: string, name: string) => {
    const text = Object.hasOwn(DIRECTIVES, name) ? DIRECTIVES[name]?.(date) : undefined;
    if (text === undefined) return whole;
    return dash === '-' ? text.replace(/^0+(?=\d)/, '') : text;
  });
}
