// Runs first in every machine. Its top-level constants are all that an
// expression sees beside the language; its value is the function that runs the
// expression. It keeps every builtin it needs, so that nothing an expression
// replaces changes what it does.
const {inputs, ctx, run/*, branches*/} = (() => {
  'use strict';
  const g = globalThis, host = g.__host, {parse, stringify} = JSON, {isArray} = Array;
  const {create, defineProperty, freeze, getOwnPropertyDescriptor, getPrototypeOf, keys} = Object;
  const internal = InternalError.prototype, {toStringTag} = Symbol;
  const {apply} = Reflect, tagOf = Object.prototype.toString;
  const unbox = [Number.prototype.valueOf, String.prototype.valueOf, Boolean.prototype.valueOf,
    BigInt.prototype.valueOf, Symbol.prototype.valueOf];
  const unreachable = {value: undefined, writable: false, configurable: false};

  for (const p of [getPrototypeOf(() => {}), getPrototypeOf(async () => {}), getPrototypeOf(function* () {}),
    getPrototypeOf(async function* () {}), Promise.prototype]) defineProperty(p, 'constructor', unreachable);
  delete Iterator.prototype.drop;
  for (const name of ['difference', 'intersection', 'isDisjointFrom', 'isSubsetOf', 'isSupersetOf',
    'symmetricDifference', 'union']) delete Set.prototype[name];
  for (const name of ['__host', 'ArrayBuffer', 'Atomics', 'BigInt64Array', 'BigUint64Array', 'DataView', 'Date',
    'FinalizationRegistry', 'Float16Array', 'Float32Array', 'Float64Array', 'Function', 'Int16Array', 'Int32Array',
    'Int8Array', 'Iterator', 'Promise', 'Proxy', 'Reflect', 'SharedArrayBuffer', 'Uint16Array', 'Uint32Array',
    'Uint8Array', 'Uint8ClampedArray', 'WeakRef', 'eval']) delete g[name];

  // The engine looks at the clock between steps of the expression, not inside a
  // builtin. One that walks a length or searches a text is therefore bounded here.
  const bound = (owner, name, check) => {
    const builtin = owner[name];
    owner[name] = {[name](...args) {
      check(this, args);
      return apply(builtin, this, args);
    }}[name];
  };
  const tooLong = (v) => {
    if (isArray(v)) {
      if (v.length > 4194304) throw new RangeError('array too long');
    } else if (typeof v === 'object' && v !== null || typeof v === 'function') {
      for (let o = v; o !== null; o = getPrototypeOf(o)) {
        const d = getOwnPropertyDescriptor(o, 'length');
        if (!d) continue;
        if (d.get || d.set || typeof d.value === 'object' || +d.value > 4194304) throw new RangeError('array too long');
        break;
      }
    }
  };
  for (const name of ['copyWithin', 'every', 'fill', 'filter', 'flat', 'flatMap', 'forEach', 'includes', 'indexOf',
    'join', 'lastIndexOf', 'map', 'reduce', 'reduceRight', 'reverse', 'shift', 'slice', 'some', 'sort', 'splice',
    'toLocaleString', 'unshift']) bound(Array.prototype, name, tooLong);
  const scope = parse(host(-1)), {ids} = scope;
  if (scope.math) {
    delete Math.random;
    freeze(Math);
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

  const outputs = create(create(Object.prototype, {constructor: unreachable}));
  for (let i = 0; i < ids.length; i++) {
    let value, bound = false;
    defineProperty(outputs, ids[i], {enumerable: true, configurable: true, get: () => {
      if (!bound) {
        const v = parse(host(i));
        value = typeof v === 'object' && v !== null ? deepFreeze(v) : v;
        bound = true;
        host(-2);
      }
      return value;
    }});
  }
  deepFreeze(scope.inputs);
  deepFreeze(scope.ctx);
  if (scope.branches) deepFreeze(scope.branches);
  scope.run = freeze({outputs: freeze(outputs)});

  // What JSON.stringify does not refuse by itself. this is the holder of the value.
  const refused = {}, none = [], path = new Array(65).fill(null);
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
    if (typeof e === 'object' && e !== null && getPrototypeOf(e) === internal) {
      const message = getOwnPropertyDescriptor(e, 'message');
      if (message && message.value === 'stack overflow') return 'k';
      if (message && message.value === 'out of memory') return 'm';
    }
    return 'r';
  };

  // The first letter of the answer says what the rest is.
  g.__out = (expression, mode) => {
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
  return scope;
})();
(() => {
  const out = globalThis.__out;
  delete globalThis.__out;
  return out;
})();
