/**
 * Writes native/src/grammar/unicode_tables.cc: the Unicode properties of regular expressions, as this Node.js knows them.
 *
 *     node scripts/unicode-tables.mjs
 *
 * Ranges are written as the gap before and the length, each in digits of five bits, the last of which has no sixth bit.
 */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';

const FILE = join(import.meta.dirname, '../native/src/grammar/unicode_tables.cc');
const DIGITS = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_';
const LINE = 120;

// Each by all of its names, as ECMA-262 has them. Without Cs: surrogates are no code points of text.
const CATEGORIES = `C|Other Cc|Control|cntrl Cf|Format Cn|Unassigned Co|Private_Use L|Letter LC|Cased_Letter
  Ll|Lowercase_Letter Lm|Modifier_Letter Lo|Other_Letter Lt|Titlecase_Letter Lu|Uppercase_Letter M|Mark|Combining_Mark
  Mc|Spacing_Mark Me|Enclosing_Mark Mn|Nonspacing_Mark N|Number Nd|Decimal_Number|digit Nl|Letter_Number No|Other_Number
  P|Punctuation|punct Pc|Connector_Punctuation Pd|Dash_Punctuation Pe|Close_Punctuation Pf|Final_Punctuation
  Pi|Initial_Punctuation Po|Other_Punctuation Ps|Open_Punctuation S|Symbol Sc|Currency_Symbol Sk|Modifier_Symbol
  Sm|Math_Symbol So|Other_Symbol Z|Separator Zl|Line_Separator Zp|Paragraph_Separator Zs|Space_Separator`.split(/\s+/);

const BINARY =
  `Any ASCII ASCII_Hex_Digit|AHex Alphabetic|Alpha Assigned Bidi_Control|Bidi_C Bidi_Mirrored|Bidi_M Case_Ignorable|CI Cased
  Changes_When_Casefolded|CWCF Changes_When_Casemapped|CWCM Changes_When_Lowercased|CWL Changes_When_NFKC_Casefolded|CWKCF
  Changes_When_Titlecased|CWT Changes_When_Uppercased|CWU Dash Default_Ignorable_Code_Point|DI Deprecated|Dep Diacritic|Dia
  Emoji Emoji_Component|EComp Emoji_Modifier|EMod Emoji_Modifier_Base|EBase Emoji_Presentation|EPres
  Extended_Pictographic|ExtPict Extender|Ext Grapheme_Base|Gr_Base Grapheme_Extend|Gr_Ext Hex_Digit|Hex
  IDS_Binary_Operator|IDSB IDS_Trinary_Operator|IDST ID_Continue|IDC ID_Start|IDS Ideographic|Ideo Join_Control|Join_C
  Logical_Order_Exception|LOE Lowercase|Lower Math Noncharacter_Code_Point|NChar Pattern_Syntax|Pat_Syn
  Pattern_White_Space|Pat_WS Quotation_Mark|QMark Radical Regional_Indicator|RI Sentence_Terminal|STerm Soft_Dotted|SD
  Terminal_Punctuation|Term Unified_Ideograph|UIdeo Uppercase|Upper Variation_Selector|VS White_Space|space
  XID_Continue|XIDC XID_Start|XIDS`.split(/\s+/);

const SCRIPTS =
  `Adlam|Adlm Ahom Anatolian_Hieroglyphs|Hluw Arabic|Arab Armenian|Armn Avestan|Avst Balinese|Bali Bamum|Bamu
  Bassa_Vah|Bass Batak|Batk Bengali|Beng Beria_Erfe|Berf Bhaiksuki|Bhks Bopomofo|Bopo Brahmi|Brah Braille|Brai
  Buginese|Bugi Buhid|Buhd Canadian_Aboriginal|Cans Carian|Cari Caucasian_Albanian|Aghb Chakma|Cakm Cham
  Cherokee|Cher Chorasmian|Chrs Common|Zyyy Coptic|Qaac|Copt Cuneiform|Xsux Cypriot|Cprt Cypro_Minoan|Cpmn
  Cyrillic|Cyrl Deseret|Dsrt Devanagari|Deva Dives_Akuru|Diak Dogra|Dogr Duployan|Dupl Egyptian_Hieroglyphs|Egyp
  Elbasan|Elba Elymaic|Elym Ethiopic|Ethi Garay|Gara Georgian|Geor Glagolitic|Glag Gothic|Goth Grantha|Gran
  Greek|Grek Gujarati|Gujr Gunjala_Gondi|Gong Gurmukhi|Guru Gurung_Khema|Gukh Hangul|Hang Hanifi_Rohingya|Rohg
  Hani|Han Hanunoo|Hano Hatran|Hatr Hebrew|Hebr Hiragana|Hira Imperial_Aramaic|Armi Inherited|Qaai|Zinh
  Inscriptional_Pahlavi|Phli Inscriptional_Parthian|Prti Javanese|Java Kaithi|Kthi Kannada|Knda Katakana|Kana Kawi
  Kayah_Li|Kali Kharoshthi|Khar Khitan_Small_Script|Kits Khmer|Khmr Khojki|Khoj Khudawadi|Sind Kirat_Rai|Krai
  Laoo|Lao Latin|Latn Lepcha|Lepc Limbu|Limb Linear_A|Lina Linear_B|Linb Lisu Lycian|Lyci Lydian|Lydi Mahajani|Mahj
  Makasar|Maka Malayalam|Mlym Mandaic|Mand Manichaean|Mani Marchen|Marc Masaram_Gondi|Gonm Medefaidrin|Medf
  Meetei_Mayek|Mtei Mende_Kikakui|Mend Meroitic_Cursive|Merc Meroitic_Hieroglyphs|Mero Miao|Plrd Modi Mongolian|Mong
  Mroo|Mro Multani|Mult Myanmar|Mymr Nabataean|Nbat Nag_Mundari|Nagm Nandinagari|Nand New_Tai_Lue|Talu Newa Nkoo|Nko
  Nushu|Nshu Nyiakeng_Puachue_Hmong|Hmnp Ogham|Ogam Ol_Chiki|Olck Ol_Onal|Onao Old_Hungarian|Hung Old_Italic|Ital
  Old_North_Arabian|Narb Old_Permic|Perm Old_Persian|Xpeo Old_Sogdian|Sogo Old_South_Arabian|Sarb Old_Turkic|Orkh
  Old_Uyghur|Ougr Oriya|Orya Osage|Osge Osmanya|Osma Pahawh_Hmong|Hmng Palmyrene|Palm Pau_Cin_Hau|Pauc Phags_Pa|Phag
  Phoenician|Phnx Psalter_Pahlavi|Phlp Rejang|Rjng Runic|Runr Samaritan|Samr Saurashtra|Saur Sharada|Shrd
  Shavian|Shaw Siddham|Sidd Sidetic|Sidt SignWriting|Sgnw Sinhala|Sinh Sogdian|Sogd Sora_Sompeng|Sora Soyombo|Soyo
  Sundanese|Sund Sunuwar|Sunu Syloti_Nagri|Sylo Syriac|Syrc Tagalog|Tglg Tagbanwa|Tagb Tai_Le|Tale Tai_Tham|Lana
  Tai_Viet|Tavt Tai_Yo|Tayo Takri|Takr Tamil|Taml Tangsa|Tnsa Tangut|Tang Telugu|Telu Thaana|Thaa Thai Tibetan|Tibt
  Tifinagh|Tfng Tirhuta|Tirh Todhri|Todr Tolong_Siki|Tols Toto Tulu_Tigalari|Tutg Ugaritic|Ugar Unknown|Zzzz Vaii|Vai
  Vithkuqi|Vith Wancho|Wcho Warang_Citi|Wara Yezidi|Yezi Yiii|Yi Zanabazar_Square|Zanb`.split(/\s+/);

/** Where a property holds, as ranges. */
function rangesOf(property) {
  const holds = new RegExp(`^\\p{${property}}$`, 'u');
  const ranges = [];
  for (let code = 0; code <= 0x10ffff; code++) {
    if ((code >= 0xd800 && code <= 0xdfff) || !holds.test(String.fromCodePoint(code))) continue;
    const last = ranges.at(-1);
    if (last && last[1] === code - 1) last[1] = code;
    else ranges.push([code, code]);
  }
  return ranges;
}

/** What lies in one of the two only. */
function difference(a, b) {
  const edges = new Map();
  for (const [low, high] of [...a, ...b]) {
    for (const edge of [low, high + 1]) edges.set(edge, (edges.get(edge) ?? 0) + 1);
  }
  const odd = [...edges].filter(([, count]) => count % 2 === 1).map(([edge]) => edge);
  odd.sort((x, y) => x - y);
  return Array.from({ length: odd.length / 2 }, (_, i) => [odd[2 * i], odd[2 * i + 1] - 1]);
}

function number(value) {
  return value < 32 ? DIGITS[value] : DIGITS[32 + (value % 32)] + number(value >> 5);
}

function encoded(ranges) {
  let end = 0;
  let out = '';
  for (const [low, high] of ranges) {
    out += number(low - end) + number(high - low);
    end = high + 1;
  }
  return out;
}

function literal(text) {
  const lines = text.match(new RegExp(`.{1,${String(LINE)}}`, 'g')) ?? [''];
  return lines.map((line) => `     "${line}"`).join('\n');
}

function table(name, entries) {
  const rows = entries.map(([names, ranges, others]) => `    {"${names}",\n${literal(ranges)},\n${literal(others)}},`);
  return `constexpr UnicodeEntry ${name}[] = {\n${rows.join('\n')}\n};`;
}

const unary = (names) => [names, encoded(rangesOf(names.split('|')[0])), ''];
const script = (names) => {
  const [name] = names.split('|');
  const own = rangesOf(`Script=${name}`);
  return [names, encoded(own), encoded(difference(own, rangesOf(`Script_Extensions=${name}`)))];
};

writeFileSync(
  FILE,
  `// Unicode ${process.versions.unicode}, written by scripts/unicode-tables.mjs.
#include "grammar/unicode_tables.h"

namespace tandem::grammar {
namespace {

// clang-format off
${table('kCategories', CATEGORIES.map(unary))}

${table('kProperties', BINARY.map(unary))}

${table('kScripts', SCRIPTS.map(script))}
// clang-format on

}  // namespace

std::span<const UnicodeEntry> unicode_categories() { return kCategories; }
std::span<const UnicodeEntry> unicode_properties() { return kProperties; }
std::span<const UnicodeEntry> unicode_scripts() { return kScripts; }

}  // namespace tandem::grammar
`,
);
