// Runs first in every machine, before the scope is known; its value is the function
// that runs the expression. It keeps every builtin it needs, so that nothing an
// expression replaces changes what it does.
(() => {
  'use strict';
  const g = globalThis, host = g.__host, {parse, stringify} = JSON, {isArray} = Array, {apply} = Reflect;
  const {create, defineProperty, freeze, getOwnPropertyDescriptor, getPrototypeOf, keys} = Object;
  const tagOf = Object.prototype.toString, internal = InternalError.prototype, {toStringTag, match} = Symbol;
  const unbox = [Number.prototype.valueOf, String.prototype.valueOf, Boolean.prototype.valueOf,
    BigInt.prototype.valueOf, Symbol.prototype.valueOf];
  const text = String, Range = RangeError, none = [], nothing = {value: undefined, writable: false, configurable: false};

  // What an expression has no use for, or could tell the time, compile text or
  // run later with.
  for (const p of [getPrototypeOf(() => {}), getPrototypeOf(async () => {}), getPrototypeOf(function* () {}),
    getPrototypeOf(async function* () {}), Promise.prototype]) defineProperty(p, 'constructor', nothing);
  for (const name of ['difference', 'intersection', 'isDisjointFrom', 'isSubsetOf', 'isSupersetOf',
    'symmetricDifference', 'union']) delete Set.prototype[name];
  delete Iterator.prototype.drop;
  delete Math.random;
  freeze(Math);
  for (const name of ['__host', 'ArrayBuffer', 'Atomics', 'BigInt64Array', 'BigUint64Array', 'DataView', 'Date',
    'FinalizationRegistry', 'Float16Array', 'Float32Array', 'Float64Array', 'Function', 'Int16Array', 'Int32Array',
    'Int8Array', 'Iterator', 'Promise', 'Proxy', 'Reflect', 'SharedArrayBuffer', 'Uint16Array', 'Uint32Array',
    'Uint8Array', 'Uint8ClampedArray', 'WeakRef', 'eval']) delete g[name];

  // The engine looks at the clock between the steps of an expression, not inside a
  // builtin. One that walks a length or searches a text is therefore bounded here:
  // memory holds at most two million elements, so a longer array is all holes.
  const longest = 4194304, longestSearch = 1073741824;
  const bounded = (v) => {
    if (isArray(v)) {
      if (v.length > longest) throw new Range('array too long');
      return;
    }
    if (typeof v !== 'function' && (typeof v !== 'object' || v === null)) return;
    for (let o = v; o !== null; o = getPrototypeOf(o)) {
      const d = getOwnPropertyDescriptor(o, 'length');
      if (!d) continue;
      const n = d.value;
      if (d.get || d.set || typeof n === 'function' || typeof n === 'object' && n !== null || +n > longest) {
        throw new Range('array too long');
      }
      return;
    }
  };
  const elements = Array.prototype, {concat, map, slice} = elements;
  for (const name of ['copyWithin', 'every', 'fill', 'filter', 'forEach', 'join', 'map', 'reduce', 'reduceRight',
    'reverse', 'shift', 'slice', 'some', 'splice', 'toLocaleString', 'unshift']) {
    const builtin = elements[name];
    elements[name] = {bounded(...args) {
      bounded(this);
      return apply(builtin, this, args);
    }}.bounded;
  }
  // To compare long values takes long, so many comparisons are steps of their own.
  const long = (v) => typeof v === 'string' ? v.length > 1024 : typeof v === 'bigint';
  for (const name of ['includes', 'indexOf', 'lastIndexOf']) {
    const builtin = elements[name];
    elements[name] = {bounded(...args) {
      bounded(this);
      if (!long(args[0])) return apply(builtin, this, args);
      const all = apply(slice, this, none);
      for (let i = 0, n = all.length; i < n; i++) all[i] = all[i] === args[0] ? none : undefined;
      args[0] = none;
      return apply(builtin, all, args);
    }}.bounded;
  }
  const inOrder = (a, b) => {
    const x = `${a}`, y = `${b}`;
    return x < y ? -1 : x > y ? 1 : 0;
  };
  for (const name of ['sort', 'toSorted']) {
    const builtin = elements[name];
    elements[name] = {bounded(compare) {
      bounded(this);
      if (compare === undefined && isArray(this)) {
        for (let i = 0, n = this.length; i < n; i++) {
          const v = this[i];
          if (long(v) || typeof v === 'object' && v !== null || typeof v === 'function') {
            compare = inOrder;
            break;
          }
        }
      }
      return apply(builtin, this, [compare]);
    }}.bounded;
  }
  const flatten = (to, from, depth) => {
    for (let i = 0, n = from.length; i < n; i++) {
      if (!(i in from)) continue;
      const x = from[i];
      if (depth >= 1 && isArray(x)) flatten(to, x, depth - 1);
      else to[to.length] = x;
    }
    return to;
  };
  elements.concat = {concat(...args) {
    bounded(this);
    for (let i = 0; i < args.length; i++) bounded(args[i]);
    return apply(concat, this, args);
  }}.concat;
  elements.flat = {flat(depth = 1) {
    return flatten([], this, +depth);
  }}.flat;
  elements.flatMap = {flatMap(f, self) {
    bounded(this);
    return flatten([], apply(map, this, [f, self]), 1);
  }}.flatMap;
  const {raw} = text;
  text.raw = {raw(strings, ...args) {
    bounded(strings.raw);
    return apply(raw, text, [strings, ...args]);
  }}.raw;
  JSON.stringify = {stringify(v, replacer, space) {
    if (isArray(replacer)) bounded(replacer);
    return stringify(v, replacer, space);
  }}.stringify;
  for (const name of ['includes', 'indexOf', 'lastIndexOf', 'replace', 'replaceAll', 'split']) {
    const builtin = text.prototype[name];
    text.prototype[name] = {bounded(...args) {
      const needle = args[0];
      if (this === null || this === undefined || typeof needle === 'object' && needle !== null && needle[match] !== undefined) {
        return apply(builtin, this, args);
      }
      const all = text(this);
      if (args.length > 0) args[0] = text(needle);
      if (all.length > 65536 && args.length > 0 && all.length * args[0].length > longestSearch) {
        throw new Range('text too long');
      }
      if (needle === undefined && name === 'split') args[0] = undefined;
      return apply(builtin, all, args);
    }}.bounded;
  }

  const deepFreeze = (v) => {
    if (isArray(v)) {
      for (let i = 0, n = v.length; i < n; i++) {
        const x = v[i];
        if (typeof x === 'object' && x !== null) deepFreeze(x);
      }
    } else {
      const names = keys(v);
      for (let i = 0, n = names.length; i < n; i++) {
        const x = v[names[i]];
        if (typeof x === 'object' && x !== null) deepFreeze(x);
      }
    }
    return freeze(v);
  };

  // Called once, by the script that declares the scope.
  g.__scope = () => {
    delete g.__scope;
    const scope = parse(host(-1)), {ids} = scope;
    const outputs = create(create(Object.prototype, {constructor: nothing}));
    for (let i = 0; i < ids.length; i++) {
      let value, read = false;
      defineProperty(outputs, ids[i], {enumerable: true, configurable: true, get: () => {
        if (!read) {
          const v = parse(host(i));
          value = typeof v === 'object' && v !== null ? deepFreeze(v) : v;
          read = true;
          host(-2);
        }
        return value;
      }});
    }
    deepFreeze(scope.inputs);
    deepFreeze(scope.ctx);
    if (scope.branches) deepFreeze(scope.branches);
    scope.run = freeze({outputs: freeze(outputs)});
    return scope;
  };

  // check refuses what JSON.stringify would drop, convert or fail on in words of
  // its own. this is the holder of the value.
  const refused = {}, path = new Array(65).fill(null);
  let depth = 0;
  const boxed = (v) => {
    for (let i = 0; i < 5; i++) {
      try {
        apply(unbox[i], v, none);
        return true;
      } catch {
        // Not boxed that way.
      }
    }
    return false;
  };
  const check = function (key, v) {
    switch (typeof v) {
    case 'object':
      break;
    case 'function':
    case 'symbol':
    case 'bigint':
      throw refused;
    default:
      return v;
    }
    if (v === null) return v;
    while (depth > 0 && path[depth - 1] !== this) depth--;
    for (let i = 0; i < depth; i++) if (path[i] === v) throw refused;
    if (depth === 64) throw refused;
    path[depth++] = v;
    if (isArray(v)) return v;
    switch (apply(tagOf, v, none)) {
    case '[object Number]':
    case '[object String]':
    case '[object Boolean]':
    case '[object BigInt]':
    case '[object Symbol]':
    case '[object Promise]':
      throw refused;
    }
    if (toStringTag in v && boxed(v)) throw refused;
    return v;
  };

  const fault = (e) => {
    if (e === refused) return 'n';
    if (e === null) return 'o';
    if (typeof e === 'object' && getPrototypeOf(e) === internal) {
      const message = getOwnPropertyDescriptor(e, 'message');
      if (message && message.value === 'stack overflow') return 'k';
      if (message && message.value === 'out of memory') return 'm';
    }
    return 'r';
  };

  // The first letter of the answer says what the rest is.
  return (expression, mode) => {
    try {
      const v = expression();
      switch (mode) {
      case 1:
        return v ? 't' : 'f';
      case 2:
        if (typeof v !== 'boolean' && typeof v !== 'string' && typeof v !== 'number') return 'y';
      }
      const s = stringify(v, check);
      return typeof s === 'string' ? 'v' + s : 'n';
    } catch (e) {
      return fault(e);
    }
  };
})();
