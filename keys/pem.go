package keys

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Bundle is the content of a PEM text with certificates, such as a CA bundle.
type Bundle struct {
	// Certificates are in the order of the text. There is at least one certificate.
	Certificates []*x509.Certificate
	// Skipped contains a line for each complete block that this program cannot use as a
	// certificate, with its line in the text and the reason. Log these lines, because the author of
	// the file expects the blocks to be used.
	Skipped []string
}

// ParseBundle parses the certificates of a PEM text (RFC 7468). Text between the blocks is allowed.
//
// A complete block that cannot be used is skipped and named in [Bundle.Skipped]: a CRL, a private
// key, or a certificate that package [crypto/x509] refuses. An incomplete block is an error that
// names its line, because the text may be only partly written. A block that other programs would
// silently ignore is also an error: a block that is indented, follows a byte order mark, or is not
// separated by a line end. A text without a certificate is an error, for which [ProblemOf] returns
// "empty" or "malformed".
func ParseBundle(text []byte) (Bundle, error) {
	return parseBundle("certificates", text)
}

// PEM returns the certificates in a form that every reader of PEM accepts.
func (b Bundle) PEM() []byte {
	var text []byte
	for _, certificate := range b.Certificates {
		block := pem.Block{Type: typeCertificate, Bytes: certificate.Raw}
		text = append(text, pem.EncodeToMemory(&block)...)
	}
	return text
}

// ParsePair parses a chain, leaf first, and its private key, as [tls.X509KeyPair] does. Its errors
// name the faulty line or block and have a [Problem]. ParsePair does not check the validity of the
// certificates.
func ParsePair(certPEM, keyPEM []byte) (tls.Certificate, error) {
	pair, _, err := parsePair("certificate", certPEM, "private key", keyPEM)
	return pair, err
}

const typeCertificate = "CERTIFICATE"

// block is a complete block of PEM. It may still be of no use.
type block struct {
	*pem.Block

	line int // the line of its BEGIN, counted from 1
}

// parseBundle skips each complete block that cannot be used. A truncated certificate is an error:
// its file may be half written.
func parseBundle(file string, text []byte) (Bundle, error) {
	blocks, err := splitBlocks(file, text)
	if err != nil {
		return Bundle{}, err
	}

	var bundle Bundle
	for _, b := range blocks {
		certificate, err := b.bundleCertificate()
		if errors.Is(err, errCut) {
			return Bundle{}, malformed(file, fmt.Errorf("line %d: %w", b.line, err))
		}
		if err != nil {
			bundle.Skipped = append(bundle.Skipped, b.skippedLine(err))
			continue
		}

		bundle.Certificates = append(bundle.Certificates, certificate)
	}

	if len(bundle.Certificates) == 0 {
		return Bundle{}, malformed(file, fmt.Errorf("no certificate that can be used, but %s",
			strings.Join(bundle.Skipped, ", ")))
	}

	return bundle, nil
}

// errCut means that DER ends before its own length says so.
var errCut = errors.New("certificate is truncated: lines of its Base64 are missing")

// bundleCertificate returns the certificate that a CA bundle has in b, or why it has none there.
func (b *block) bundleCertificate() (*x509.Certificate, error) {
	switch {
	case b.isKey():
		return nil, errors.New("a private key does not belong here, and may have to be revoked")
	case b.Type == "TRUSTED "+typeCertificate:
		return nil, errors.New("it contains trust settings of OpenSSL after the certificate: " +
			"openssl x509 without -trustout writes it without them")
	case b.Type == "PKCS7":
		return nil, errors.New("openssl pkcs7 -print_certs writes its certificates in PEM")
	case b.Type != typeCertificate:
		return nil, errors.New("want " + typeCertificate)
	// The standard library and client-go pass over it, too.
	case len(b.Headers) > 0:
		return nil, errors.New("want a block without headers")
	default:
		return parseCertificate(b.Bytes)
	}
}

func parseCertificate(der []byte) (*x509.Certificate, error) {
	certificate, err := x509.ParseCertificate(der)
	if err != nil && isCut(der) {
		return nil, errCut
	}
	return certificate, err
}

// isCut reports whether der is the beginning of a longer SEQUENCE. Each certificate is a SEQUENCE.
func isCut(der []byte) bool {
	const sequence = 0x30
	if len(der) == 0 || der[0] != sequence {
		return false
	}

	var value asn1.RawValue
	_, err := asn1.Unmarshal(der, &value)
	return err != nil && strings.Contains(err.Error(), "truncated")
}

// isKey is true for a block that crypto/tls takes for a key, which may be one that it cannot read.
func (b *block) isKey() bool {
	return b.Type == "PRIVATE KEY" || strings.HasSuffix(b.Type, " PRIVATE KEY")
}

// typeName quotes the type of a block. Log scanners raise an alarm at the words PRIVATE KEY.
func typeName(kind string) string {
	if strings.HasSuffix(kind, "PRIVATE KEY") {
		return "of a key"
	}
	return fmt.Sprintf("%.40q", kind)
}

func (b *block) skippedLine(err error) string {
	return fmt.Sprintf("line %d: block %s is skipped: %v", b.line, typeName(b.Type), err)
}

// parsePair takes the same blocks as [tls.X509KeyPair]: all of type CERTIFICATE, of which the first
// is the leaf, and the first key. It also returns the blocks that are not used.
func parsePair(certFile string, certPEM []byte, keyFile string, keyPEM []byte) (
	pair tls.Certificate, skipped []string, err error,
) {
	chain, skipped, err := parseChain(certFile, certPEM)
	if err != nil {
		return tls.Certificate{}, nil, err
	}

	key, skippedBesideKey, err := parseKey(keyFile, keyPEM)
	if err != nil {
		return tls.Certificate{}, nil, err
	}

	skipped = append(inFile(certFile, skipped), inFile(keyFile, skippedBesideKey)...)

	// It also compares the public keys.
	pair, err = tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return tls.Certificate{}, nil, mismatch(certFile, keyFile, chain, key, err)
	}

	pair.Leaf = chain[0]
	return pair, skipped, nil
}

// mismatch returns the error for a key that does not belong to the leaf. It names the certificate
// of the chain to which the key belongs, if there is one.
func mismatch(certFile, keyFile string, chain []*x509.Certificate, key crypto.PrivateKey, err error) error {
	for n, certificate := range chain[1:] {
		if belongs(key, certificate) {
			return &materialError{file: certFile, problem: ProblemMismatch, err: fmt.Errorf(
				"the key is that of certificate number %d, %.64q: want the leaf first, then the CA that issued it",
				n+2, certificate.Subject.CommonName)}
		}
	}

	return &materialError{file: keyFile, problem: ProblemMismatch, err: err}
}

func inFile(file string, skipped []string) (named []string) {
	for _, text := range skipped {
		named = append(named, file+": "+text)
	}
	return named
}

func belongs(key crypto.PrivateKey, certificate *x509.Certificate) bool {
	signer, isSigner := key.(crypto.Signer)
	if !isSigner {
		return false
	}

	public, isComparable := signer.Public().(interface {
		Equal(other crypto.PublicKey) bool
	})
	return isComparable && public.Equal(certificate.PublicKey)
}

// parseChain returns the certificates that can be read, the leaf first. One behind the leaf that
// cannot be read is sent nevertheless, because the other end may know better.
func parseChain(file string, text []byte) (chain []*x509.Certificate, skipped []string, err error) {
	blocks, err := splitBlocks(file, text)
	if err != nil {
		return nil, nil, err
	}

	for _, b := range blocks {
		if b.Type != typeCertificate {
			skipped = append(skipped, b.skippedLine(errors.New("want "+typeCertificate)))
			continue
		}

		certificate, err := parseCertificate(b.Bytes)
		isNeeded := len(chain) == 0 || errors.Is(err, errCut) // The leaf, and each block that is cut.
		if err != nil && isNeeded {
			return nil, nil, malformed(file, fmt.Errorf("line %d: %w", b.line, err))
		}
		if err != nil {
			skipped = append(skipped, fmt.Sprintf("line %d: certificate cannot be read here: %v", b.line, err))
			continue
		}

		chain = append(chain, certificate)
	}

	if len(chain) == 0 {
		return nil, nil, malformed(file, fmt.Errorf("no certificate, but %s", strings.Join(skipped, ", ")))
	}

	return chain, skipped, nil
}

// parseKey returns the first key of a text.
func parseKey(file string, text []byte) (key crypto.PrivateKey, skipped []string, err error) {
	blocks, err := splitBlocks(file, text)
	if err != nil {
		return nil, nil, err
	}

	var chosen *block
	for _, b := range blocks {
		switch {
		case !b.isKey():
			skipped = append(skipped, b.skippedLine(errors.New("it is not a private key")))
		case chosen != nil:
			skipped = append(skipped, b.skippedLine(fmt.Errorf("the key in line %d comes first", chosen.line)))
		default:
			chosen = &b
		}
	}

	if chosen == nil {
		return nil, nil, malformed(file, fmt.Errorf("no private key, but %s", strings.Join(skipped, ", ")))
	}

	key, err = chosen.privateKey()
	if err != nil {
		return nil, nil, malformed(file, fmt.Errorf("line %d: %w", chosen.line, err))
	}

	return key, skipped, nil
}

// privateKey accepts the formats that crypto/tls accepts.
func (b *block) privateKey() (crypto.PrivateKey, error) {
	isEncrypted := strings.HasPrefix(b.Type, "ENCRYPTED ") || strings.Contains(b.Headers["Proc-Type"], "ENCRYPTED")
	if isEncrypted {
		return nil, errors.New("the key is encrypted, want it without a password: openssl pkey removes the password")
	}

	if b.Type == "OPENSSH PRIVATE KEY" {
		return nil, errors.New("want PKCS #8, not the format of OpenSSH: ssh-keygen -p -m PKCS8 converts it")
	}

	for _, parse := range []func([]byte) (any, error){
		x509.ParsePKCS8PrivateKey,
		func(der []byte) (any, error) { return x509.ParseECPrivateKey(der) },
		func(der []byte) (any, error) { return x509.ParsePKCS1PrivateKey(der) },
	} {
		key, err := parse(b.Bytes)
		if err != nil {
			continue
		}
		return key, nil
	}

	return nil, errors.New("want a key in PKCS #8, PKCS #1 or SEC 1")
}

const (
	markBegin = "-----BEGIN "
	markEnd   = "-----END "
	markTail  = "-----"
)

// nearlyMark matches a text that was a mark before an editor or a chat program changed its dashes.
var nearlyMark = regexp.MustCompile(
	`(?:[-\x{2010}-\x{2015}]){2,}\s*(?:BEGIN|END)\s+(?:[A-Z0-9]+\s+)*(?:CERTIFICATE|PRIVATE KEY|PKCS7)`)

// splitBlocks returns the blocks of a text. It refuses one that [pem.Decode] would pass over, so
// that this program finds the same blocks as all others, or an error.
func splitBlocks(file string, text []byte) ([]block, error) {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil, &materialError{file: file, problem: ProblemEmpty, err: errors.New("want PEM blocks")}
	}

	var (
		s      splitter
		offset int
	)
	for line := range bytes.Lines(text) {
		s.line++
		if err := s.readLine(text, line, offset); err != nil {
			return nil, malformed(file, fmt.Errorf("line %d: %w", s.line, err))
		}

		offset += len(line)
	}

	switch {
	case s.isOpen:
		return nil, malformed(file, fmt.Errorf("line %d: block %s has no END line: the text is cut off",
			s.begin, typeName(s.kind)))
	case len(s.blocks) == 0:
		return nil, malformed(file, fmt.Errorf("no PEM block: %s", guess(text)))
	default:
		return s.blocks, nil
	}
}

// splitter reads a text line by line.
type splitter struct {
	blocks []block
	line   int // the present one, counted from 1

	// The block that has begun and not ended: its first line, its offset in the text, and its type.
	isOpen bool
	begin  int
	offset int
	kind   string
}

// readLine takes in the next line, which begins at offset in text. It refuses a hidden mark, inside
// and outside of blocks.
func (s *splitter) readLine(text, line []byte, offset int) error {
	trimmed := string(bytes.TrimRight(line, " \t\r\n"))
	kind, isBegin := cutMark(trimmed, markBegin)
	endOf, isEnd := cutMark(trimmed, markEnd)

	switch {
	case isBegin && s.isOpen:
		return fmt.Errorf("block %s of line %d has no END line before the next block begins", typeName(s.kind), s.begin)
	case isBegin:
		s.isOpen = true
		s.begin = s.line
		s.offset = offset
		s.kind = kind
		return nil
	case isEnd && !s.isOpen:
		return fmt.Errorf("block %s has no BEGIN line: the text is cut off", typeName(endOf))
	case isEnd:
		return s.endBlock(text[s.offset:offset+len(line)], endOf)
	default:
		return checkNoMark(trimmed)
	}
}

// cutMark returns the type of a block from a line that is a mark.
func cutMark(line, mark string) (kind string, isMark bool) {
	kind, isMark = strings.CutPrefix(line, mark)
	if !isMark {
		return "", false
	}

	kind, isMark = strings.CutSuffix(kind, markTail)
	return kind, isMark && !strings.Contains(kind, markTail)
}

// endBlock decodes the block that has ended. Text that pem.Decode skips would be lost silently, so
// it is an error.
func (s *splitter) endBlock(text []byte, kind string) error {
	if kind != s.kind {
		return fmt.Errorf("END line of %s, want the END line of %s, which begins in line %d",
			typeName(kind), typeName(s.kind), s.begin)
	}

	decoded, rest := pem.Decode(text)
	if decoded == nil || len(rest) > 0 {
		return fmt.Errorf("block %s of line %d is not valid Base64: a part of it is missing or changed",
			typeName(kind), s.begin)
	}

	s.blocks = append(s.blocks, block{decoded, s.begin})
	s.isOpen = false
	return nil
}

// checkNoMark refuses a line with a mark that readers of PEM do not see.
func checkNoMark(line string) error {
	marks := strings.Count(line, markBegin) + strings.Count(line, markEnd)
	if marks == 0 {
		if nearlyMark.MatchString(line) {
			return errors.New("want a BEGIN or END line with five hyphens (ASCII) on each side")
		}
		return nil
	}

	first := min(indexOr(line, markBegin), indexOr(line, markEnd))
	before := line[:first]

	switch {
	case before == "\ufeff":
		return errors.New("a byte order mark precedes the block: save the text without a byte order mark")
	case strings.Contains(line, `\n`):
		return errors.New(`line ends are written as \n: want real ones`)
	case strings.Contains(line, "\r"):
		return errors.New("line ends are CR alone: want LF, or CR and LF")
	case marks > 1 && strings.Contains(line, markTail+markBegin):
		return errors.New("a line end is missing between two blocks")
	case marks > 1:
		return errors.New("the block is on one line: want the BEGIN and END markers alone on their lines")
	case before != "" && strings.TrimSpace(before) == "":
		return errors.New("the block is indented: want its BEGIN and END lines without leading spaces")
	default:
		return errors.New("want a BEGIN or END marker alone on its line, with five hyphens on each side")
	}
}

func indexOr(line, mark string) int {
	if at := strings.Index(line, mark); at >= 0 {
		return at
	}
	return len(line)
}

// guess names the likely form of a text without PEM.
func guess(text []byte) string {
	trimmed := bytes.TrimSpace(text)
	hasPrefix := func(prefix string) bool { return bytes.HasPrefix(trimmed, []byte(prefix)) }

	switch {
	case hasPrefix("\xff\xfe"), hasPrefix("\xfe\xff"), bytes.Contains(text, []byte("B\x00E\x00G\x00I\x00N")):
		return "it is UTF-16, want ASCII or UTF-8"
	case hasPrefix("\xfe\xed\xfe\xed"):
		return "it is a Java key store: keytool -exportcert -rfc writes PEM"
	case hasPrefix("\x30\x82"), hasPrefix("\x30\x80"), hasPrefix("\x30\x81"):
		return "it is DER or PKCS #12: openssl x509 -inform der, or openssl pkcs12, writes PEM"
	case hasPrefix("LS0tLS1CRUdJTi"):
		return "it is Base64 of PEM: decode it once more"
	case hasPrefix("MII"):
		return "it is Base64 without its BEGIN and END lines"
	default:
		return "want a line " + markBegin + typeCertificate + markTail + ", or another type"
	}
}
