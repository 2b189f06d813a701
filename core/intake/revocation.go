package intake

import (
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

// Revocations provides the current list of revoked senders.
//
// RevocationList returns the same pointer until the list changes, and nil before the list was read
// for the first time. While the list is nil, an intake refuses every sender as not ready, because
// the sender may be revoked. RevocationList is called concurrently, for each batch and ten times a
// second, and must not block.
type Revocations interface {
	RevocationList() *RevocationList
}

// RevocationRefresher is an optional interface for [Revocations] with a source that is read
// repeatedly. Each running transport calls RefreshRevocations ten times a second.
// RefreshRevocations may block.
type RevocationRefresher interface {
	RefreshRevocations()
}

// RevocationsFunc adapts a function to [Revocations].
type RevocationsFunc func() *RevocationList

// RevocationList calls f.
func (f RevocationsFunc) RevocationList() *RevocationList { return f() }

// RevocationList is an immutable list of revoked certificates and names. [ParseRevocations] makes
// it.
type RevocationList struct {
	fingerprints map[string]struct{}
	names        map[string]struct{} // as written, and addresses in their shortest form
	dnsNames     map[string]struct{} // the same in lower case
}

const (
	// maxRevocations bounds the text of a list, in bytes: the bound of a ConfigMap.
	maxRevocations   = 1 << 20
	kindFingerprint  = "sha256"
	opensslLabel     = "sha256 fingerprint"
	kindName         = "name"
	fingerprintBytes = 32
)

var errRevocation = errors.New("want sha256:<64 hex digits> or name:<name>")

// ParseRevocations reads a list with one entry per line:
//
//   - "sha256:" and the SHA-256 of a certificate's DER bytes, in hex of either case, with or
//     without colons. A line that "openssl x509 -noout -fingerprint -sha256" prints is also an
//     entry. An entry also covers the other valid forms of the certificate: see OtherFingerprints
//     of [core.Peer].
//   - "name:" and a DNS name, URI, IP address or Common Name of certificates, the name of a
//     runtime, or the name of a NATS user. DNS names are compared without regard to case, and all
//     other names exactly. There are no wildcards.
//
// Empty lines and the rest of a line after " #" are skipped. The error names each malformed line by
// its number. ParseRevocations then returns no list, because a list without the malformed entry
// would admit the sender for which the entry was meant.
func ParseRevocations(text []byte) (*RevocationList, error) {
	if len(text) > maxRevocations {
		return nil, fmt.Errorf("list of revocations has %d bytes, want at most %d", len(text), maxRevocations)
	}

	list := &RevocationList{
		fingerprints: map[string]struct{}{}, names: map[string]struct{}{}, dnsNames: map[string]struct{}{},
	}
	var wrong []error

	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		if err := list.addLine(line); err != nil {
			wrong = append(wrong, fmt.Errorf("line %d, %.80q: %w", number, strings.TrimSpace(line), err))
		}
	}

	const most = 10 // A file of another kind has thousands.
	if len(wrong) > most {
		wrong = append(wrong[:most], fmt.Errorf("and %d more lines", len(wrong)-most))
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	return list, nil
}

// addLine reads one line. It accepts the output of openssl x509 -fingerprint as an entry.
func (l *RevocationList) addLine(line string) error {
	line = strings.TrimSpace(line)
	if strings.HasPrefix(line, "#") {
		return nil
	}

	entry, _, _ := strings.Cut(line, " #")
	entry = strings.TrimSpace(entry)
	if entry == "" {
		return nil
	}

	at := strings.IndexAny(entry, ":=")
	if at < 0 {
		return errRevocation
	}

	value := strings.TrimSpace(entry[at+1:])
	switch strings.ToLower(strings.TrimSpace(entry[:at])) {
	case kindFingerprint, opensslLabel:
		return l.addFingerprint(value)
	case kindName:
		return l.addName(value)
	default:
		return errRevocation
	}
}

func (l *RevocationList) addFingerprint(value string) error {
	digest, err := hex.DecodeString(strings.ReplaceAll(value, ":", ""))
	if err != nil || len(digest) != fingerprintBytes {
		return fmt.Errorf("%w: the fingerprint is not a SHA-256", errRevocation)
	}
	l.fingerprints[hex.EncodeToString(digest)] = struct{}{}
	return nil
}

// addName keeps a name as written, and for DNS names without case.
func (l *RevocationList) addName(value string) error {
	if strings.Contains(value, "*") {
		return fmt.Errorf("%w: a wildcard matches nothing, name each one", errRevocation)
	}
	if err := option.RuntimeName(value); err != nil {
		return fmt.Errorf("%w: %w", errRevocation, err)
	}

	name := shortestForm(value)
	l.names[name] = struct{}{}
	l.dnsNames[strings.ToLower(name)] = struct{}{}
	return nil
}

// shortestForm returns an address in its shortest form, and any other name as it is.
func shortestForm(name string) string {
	addr, err := netip.ParseAddr(name)
	if err != nil {
		return name
	}
	return addr.Unmap().String()
}

func (l *RevocationList) entries() int { return len(l.fingerprints) + len(l.names) }

// Revokes reports whether an entry matches the certificate or a name of a sender.
func (l *RevocationList) Revokes(peer core.Peer) bool {
	if l == nil || l.entries() == 0 { // The usual list costs nothing.
		return false
	}
	isListed := func(fingerprint string) bool { _, listed := l.fingerprints[fingerprint]; return listed }
	if isListed(peer.Fingerprint) || slices.ContainsFunc(peer.OtherFingerprints, isListed) {
		return true
	}
	return len(l.names) > 0 && l.revokesName(peer)
}

func (l *RevocationList) revokesName(peer core.Peer) bool {
	isNamed := func(name string) bool { _, listed := l.names[name]; return listed }
	isDNSName := func(name string) bool { _, listed := l.dnsNames[strings.ToLower(name)]; return listed }
	isAddress := func(ip netip.Addr) bool { return isNamed(ip.String()) }

	return isNamed(string(peer.ID)) || isNamed(peer.CommonName) || slices.ContainsFunc(peer.URIs, isNamed) ||
		slices.ContainsFunc(peer.DNSNames, isDNSName) || slices.ContainsFunc(peer.IPs, isAddress)
}

// LiveRevocations is a [Revocations] with a list that is replaced when its source changes. A
// malformed text never replaces a list. All methods are safe for concurrent use.
type LiveRevocations struct {
	log     *slog.Logger
	changed func(entries int, err error)
	current atomic.Pointer[RevocationList]

	mu   sync.Mutex // held while the list is replaced
	text string
	// problem is the text of the failure that was logged last, empty after a success.
	problem string
}

// RevocationOptions are the optional settings of [LiveRevocations]. The zero value is the
// documented default.
type RevocationOptions struct {
	// Logger gets a line for each new list, with the number of its entries, and for each distinct
	// failure. Default: discard.
	Logger *slog.Logger
	// Changed is called for each new list, with the number of its entries, and for each distinct
	// failure. It must return immediately. Default: none.
	Changed func(entries int, err error)
}

// NewLiveRevocations returns revocations that have no list yet: see [Revocations].
func NewLiveRevocations(opts RevocationOptions) *LiveRevocations {
	opts = option.WithDefaults(opts, RevocationOptions{
		Logger: slog.New(slog.DiscardHandler), Changed: func(int, error) {},
	})
	return &LiveRevocations{log: opts.Logger, changed: opts.Changed}
}

// RevocationList implements [Revocations]. It returns the last valid list.
func (r *LiveRevocations) RevocationList() *RevocationList { return r.current.Load() }

// Replace parses text and replaces the current list. If text is malformed, the last valid list
// stays in use, and the error names each malformed line.
func (r *LiveRevocations) Replace(text []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()

	held := r.current.Load()
	if held != nil && r.problem == "" && r.text == string(text) {
		return nil
	}
	list, err := ParseRevocations(text)
	if err != nil {
		r.noteFailure(err)
		return err
	}

	r.problem = ""
	r.text = string(text)
	r.current.Store(list)
	r.log.Info("list of revoked senders is in use", slog.Int("entries", list.entries()))
	r.changed(list.entries(), nil)
	return nil
}

// Fail reports that the source cannot be read. The last valid list stays in use.
func (r *LiveRevocations) Fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noteFailure(err)
}

// noteFailure reports a problem unless it equals the last one. The caller holds the lock.
func (r *LiveRevocations) noteFailure(err error) {
	if r.problem == err.Error() {
		return
	}

	r.problem = err.Error()
	r.changed(0, err)

	problem := slog.Any("error", err)
	if r.current.Load() == nil {
		r.log.Error("the list of revoked senders is broken: no sender is admitted until the list is valid", problem)
		return
	}
	r.log.Error("the list of revoked senders is broken: the last good list stays in use", problem)
}
