package secrets

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"strings"
	"sync"

	"filippo.io/age"
)

// An ageFile is a JSON object of names and values, encrypted with age: to the
// identities of a key file, or with a passphrase.
type ageFile struct {
	path, identity string
	passphrase     func(ctx context.Context) ([]byte, error)

	mu     sync.Mutex
	asked  []byte // the passphrase, once it opened the file
	seen   [sha256.Size]byte
	values map[string]string // of the file with the digest seen
}

// scryptWork bounds the work of a passphrase: what the age command uses itself.
const scryptWork = 18

func (f *ageFile) get(ctx context.Context, name Name) ([]byte, error) {
	values, err := f.read(ctx)
	if err != nil {
		return nil, err
	}
	value, ok := values[name.String()]
	if !ok {
		return nil, absence{Absent, "not in it"}
	}
	return []byte(value), nil
}

// read decrypts the file, unless it is as it was. The map is not to be changed.
func (f *ageFile) read(ctx context.Context) (map[string]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sealed, err := readFile(f.path, maxAgeFileBytes, ownerWrites)
	if errors.Is(err, errNoFile) {
		return nil, absence{Absent, "there is none"}
	}
	if err != nil {
		return nil, err
	}
	digest := sha256.Sum256(sealed)
	if f.values != nil && digest == f.seen {
		return f.values, nil
	}
	var identities []age.Identity
	byPassphrase := takesPassphrase(sealed)
	if byPassphrase {
		identity, err := f.passphraseIdentity(ctx)
		if err != nil {
			return nil, err
		}
		identities = []age.Identity{identity}
	} else if identities, err = f.identities(); err != nil {
		if errors.Is(err, errNoFile) {
			return nil, refusal("its key file is not there")
		}
		return nil, err
	}
	values, err := decrypt(sealed, identities)
	if err != nil {
		if byPassphrase {
			clear(f.asked)
			f.asked = nil
		}
		return nil, err
	}
	f.seen, f.values = digest, values
	return values, nil
}

func decrypt(sealed []byte, identities []age.Identity) (map[string]string, error) {
	opened, err := age.Decrypt(bytes.NewReader(sealed), identities...)
	if _, ok := errors.AsType[*age.NoIdentityMatchError](err); ok {
		return nil, refusal("the key or passphrase is not the one it was encrypted with")
	}
	if err != nil {
		return nil, refusal("not an age file that can be read")
	}
	plain, err := io.ReadAll(io.LimitReader(opened, maxAgeFileBytes+1))
	defer clear(plain)
	if err != nil {
		return nil, refusal("damaged")
	}
	var values map[string]string
	if json.Unmarshal(plain, &values) != nil || values == nil {
		return nil, refusal("holds no JSON object of names and texts")
	}
	return values, nil
}

// takesPassphrase reports whether a file is encrypted with a passphrase: its header
// then holds the one stanza scrypt.
func takesPassphrase(sealed []byte) bool {
	return strings.HasPrefix(stanzas(sealed), "scrypt ")
}

// stanzas is the header of an age file from its first recipient on.
func stanzas(sealed []byte) string {
	header, err := age.ExtractHeader(bytes.NewReader(sealed))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(header), "\n-> ")
	return rest
}

func (f *ageFile) passphraseIdentity(ctx context.Context) (*age.ScryptIdentity, error) {
	if f.asked == nil {
		if f.passphrase == nil {
			return nil, refusal("needs a passphrase, which is asked for on a terminal only; use a key file for a process without one")
		}
		typed, err := f.passphrase(ctx)
		if err != nil {
			return nil, refusal("needs a passphrase, and none was given")
		}
		f.asked = typed
	}
	identity, err := age.NewScryptIdentity(string(f.asked))
	if err != nil {
		f.asked = nil
		return nil, refusal("needs a passphrase, and none was given")
	}
	identity.SetMaxWorkFactor(scryptWork)
	return identity, nil
}

// identities reads the key file, which only its owner may read.
func (f *ageFile) identities() ([]age.Identity, error) {
	src, err := readFile(f.identity, maxKeyFileBytes, ownerOnly)
	defer clear(src)
	if err != nil {
		if !errors.Is(err, errNoFile) {
			err = refusal("its key file " + err.Error())
		}
		return nil, err
	}
	identities, err := age.ParseIdentities(bytes.NewReader(src))
	if err != nil {
		return nil, refusal("its key file holds no age identities")
	}
	return identities, nil
}

// put sets or, where value is nil, removes a name and reports whether it was there.
// The first value makes the file, with a key file of its own if there is none.
func (f *ageFile) put(ctx context.Context, name Name, value []byte) (bool, error) {
	values, err := f.read(ctx)
	_, absent := errors.AsType[absence](err)
	if absent && value == nil {
		return false, nil
	}
	if err != nil && !absent {
		return false, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, had := values[name.String()]
	if value == nil && !had {
		return false, nil
	}
	changed := maps.Clone(values)
	if changed == nil {
		changed = make(map[string]string)
	}
	if value == nil {
		delete(changed, name.String())
	} else {
		changed[name.String()] = string(value)
	}
	recipients, err := f.recipients(absent)
	if err != nil {
		return false, err
	}
	plain, err := json.Marshal(changed)
	if err != nil {
		return false, err
	}
	defer clear(plain)
	if len(plain) > maxAgeFileBytes/2 {
		return false, refusal("full")
	}
	var sealed bytes.Buffer
	w, err := age.Encrypt(&sealed, recipients...)
	if err != nil {
		return false, refusal("cannot be encrypted to its key file")
	}
	_, err = w.Write(plain)
	if err = errors.Join(err, w.Close()); err != nil {
		return false, err
	}
	if err := replaceFile(f.path, sealed.Bytes()); err != nil {
		return false, err
	}
	f.seen, f.values = sha256.Sum256(sealed.Bytes()), changed
	return had, nil
}

// recipients are those that can open the file now, or the key file for a new one. A
// file for others as well is not written: they would be locked out.
func (f *ageFile) recipients(fresh bool) ([]age.Recipient, error) {
	if !fresh {
		sealed, err := readFile(f.path, maxAgeFileBytes, ownerWrites)
		if err != nil {
			return nil, err
		}
		if takesPassphrase(sealed) {
			r, err := age.NewScryptRecipient(string(f.asked))
			if err != nil {
				return nil, refusal("needs a passphrase")
			}
			r.SetWorkFactor(scryptWork)
			return []age.Recipient{r}, nil
		}
		if strings.Contains(stanzas(sealed), "\n-> ") {
			return nil, refusal("is encrypted to several recipients; change it with the age command")
		}
	}
	identities, err := f.identities()
	if errors.Is(err, errNoFile) {
		identities, err = f.generate()
	}
	if err != nil {
		return nil, err
	}
	for _, identity := range identities {
		switch known := identity.(type) {
		case *age.X25519Identity:
			return []age.Recipient{known.Recipient()}, nil
		case *age.HybridIdentity:
			return []age.Recipient{known.Recipient()}, nil
		}
	}
	return nil, refusal("its key file holds no identity to encrypt to")
}

// generate makes a key file.
func (f *ageFile) generate() ([]age.Identity, error) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, err
	}
	text := []byte("# The key of " + ageFileName(f.path) + ". Who can read this file can read every secret in it.\n" +
		"# public key: " + identity.Recipient().String() + "\n" + identity.String() + "\n")
	defer clear(text)
	if err := createFile(f.identity, text); err != nil {
		return nil, err
	}
	return []age.Identity{identity}, nil
}
