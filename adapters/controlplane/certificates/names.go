package certificates

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/runtime-watcher/runtime-watcher/core"
)

// What marks the objects of this package.
const (
	// FieldOwner owns what this package applies.
	FieldOwner = "runtime-watcher-certificates"

	// LabelSet says which [Certificates] an object belongs to, LabelRole what it is for.
	LabelSet  = "operator.kyma-project.io/certificates"
	LabelRole = "operator.kyma-project.io/certificate-role"

	roleCA      = "ca"
	roleServer  = "server"
	roleRuntime = "runtime"

	labelGeneration = "operator.kyma-project.io/ca-generation"
)

// Annotations of the Issuer of the clients, by which a user speaks with this package, and it with the user.
const (
	// AnnotationRotate asks for a new CA whenever its value changes: any text, such as the date.
	AnnotationRotate = "operator.kyma-project.io/rotate-ca"
	// AnnotationSwitchAnyway names the generation of a CA to which the server certificate switches although not all runtimes have
	// confirmed it. They are cut off until they get the new bundle.
	AnnotationSwitchAnyway = "operator.kyma-project.io/switch-anyway"
	// AnnotationRotation is what the rotation is doing, and whom it waits for.
	AnnotationRotation = "operator.kyma-project.io/rotation"

	// annotationRequest is what a CA was made for.
	annotationRequest = "operator.kyma-project.io/requested-by"
	// annotationBundleSince is when the bundle got its youngest CA.
	annotationBundleSince = "operator.kyma-project.io/bundle-since"
)

const (
	// maxName leaves room for what is added to it in a label and in a Common Name.
	maxName = 40
	// maxCommonName is the upper bound of RFC 5280, appendix A.1 (ub-common-name).
	maxCommonName = 64
	// maxDNSName is the longest name of a host, without the dot at its end (RFC 1035, section 2.3.4).
	maxDNSName = 253
	hashDigits = 10

	runtimeSuffix = "-watcher-tls"
)

// ErrInvalidRuntime means that a runtime can not get a certificate: its ID or its domain does not fit in one.
var ErrInvalidRuntime = errors.New("runtime can not have a certificate")

// The names of all objects are derived from that of the set.
type names string

func (n names) selfSigned() string { return string(n) + "-selfsigned" }
func (n names) clients() string    { return string(n) + "-clients" }
func (n names) servers() string    { return string(n) + "-servers" }
func (n names) server() string     { return string(n) + "-server" }
func (n names) listener() string   { return string(n) + "-listener" }

func (n names) authority(generation int) string { return string(n) + "-ca-" + strconv.Itoa(generation) }

func (n names) validate() error {
	if errs := validation.IsDNS1123Label(string(n)); len(errs) > 0 || len(n) > maxName {
		return fmt.Errorf("certificates: name %.64q: want a DNS-1123 label of at most %d characters", string(n), maxName)
	}

	return nil
}

// objectName returns the name of the Certificate and the Secret of a runtime: its ID where that can be a name, and otherwise what of it
// can, with a hash that keeps different IDs apart. No other object of this package ends like that.
func objectName(id core.RuntimeID) string {
	readable := strings.Trim(strings.Map(nameRune, strings.ToLower(string(id))), "-")
	if readable == string(id) {
		return readable + runtimeSuffix
	}

	sum := sha256.Sum256([]byte(id))

	return strings.TrimLeft(readable+"-", "-") + hex.EncodeToString(sum[:])[:hashDigits] + runtimeSuffix
}

func nameRune(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
		return r
	}

	return '-'
}

func checkID(id core.RuntimeID) error {
	switch {
	case id == "":
		return fmt.Errorf("%w: its ID is empty", ErrInvalidRuntime)
	case len(id) > maxCommonName:
		return fmt.Errorf("%w: ID %.32q… has %d bytes, want at most %d: it is the Common Name (RFC 5280, ub-common-name)",
			ErrInvalidRuntime, string(id), len(id), maxCommonName)
	case strings.ContainsFunc(string(id), func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }):
		return fmt.Errorf("%w: ID %q has characters that can not be printed", ErrInvalidRuntime, string(id))
	default:
		return nil
	}
}

// checkDNSName wants a name that a certificate can be for and that a peer can be compared with: no wildcard, no address.
func checkDNSName(name string) error {
	name = strings.TrimSuffix(name, ".")

	if _, err := netip.ParseAddr(name); err == nil || len(name) > maxDNSName ||
		len(validation.IsDNS1123Subdomain(strings.ToLower(name))) > 0 {
		return fmt.Errorf("%.300q is no DNS name", name)
	}

	return nil
}
