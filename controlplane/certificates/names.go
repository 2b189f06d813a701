package certificates

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/runtime-watcher/runtime-watcher/core"
)

const (
	fieldOwner = "runtime-watcher-certificates"

	// labelSet has the name of the [Certificates] of an object, labelRole one of the roles.
	labelSet  = "operator.kyma-project.io/certificates"
	labelRole = "operator.kyma-project.io/certificate-role"

	roleCA      = "ca"
	roleServer  = "server"
	roleClient  = "runtime"
	roleWebhook = "webhook"

	labelGeneration = "operator.kyma-project.io/ca-generation"
)

// Annotations of the clients' Issuer, with which a user controls and observes a rotation.
const (
	// annotationRotate requests a new CA whenever its value changes. The value is any text, such as
	// the date.
	annotationRotate = "operator.kyma-project.io/rotate-ca"
	// annotationSwitchAnyway is the generation of a CA to which the server certificate switches
	// without waiting for the confirmation of all runtimes. The others are cut off until they get
	// the new bundle.
	annotationSwitchAnyway = "operator.kyma-project.io/switch-anyway"
	// annotationRotation reports the progress of a rotation, and the runtimes that it waits for.
	annotationRotation = "operator.kyma-project.io/rotation"
)

const (
	// annotationRequest is the value of [annotationRotate] for which a CA was made.
	annotationRequest = "operator.kyma-project.io/requested-by"
	// annotationBundleSince is the time at which the bundle got its youngest CA.
	annotationBundleSince = "operator.kyma-project.io/bundle-since"
	// annotationRuntime is the ID of a runtime, on its certificates.
	annotationRuntime = "operator.kyma-project.io/runtime-id"
	// annotationOwner is <namespace>/<name> of the object that represents a runtime,
	// annotationOwnerUID its UID.
	annotationOwner    = "operator.kyma-project.io/certificate-owner"
	annotationOwnerUID = "operator.kyma-project.io/certificate-owner-uid"
)

const (
	// maxName leaves room for the suffixes in labels and in Common Names.
	maxName = 40
	// maxCommonName is the upper bound of RFC 5280, appendix A.1 (ub-common-name).
	maxCommonName = 64
	// maxDNSName is the longest name of a host, without the dot at its end (RFC 1035, section
	// 2.3.4).
	maxDNSName = 253
	hashDigits = 10

	clientSuffix  = "-watcher-tls"
	webhookSuffix = "-webhook-tls"
)

// names derives the names of all objects from the name of the set.
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

// generationOf returns the generation of a CA with that name, 0 if it is no CA of this set.
func (n names) generationOf(name string) int {
	text, ok := strings.CutPrefix(name, strings.TrimSuffix(n.authority(0), "0"))
	generation, err := strconv.Atoi(text)
	if !ok || err != nil {
		return 0
	}
	return generation
}

// objectName returns the name of a Certificate and its Secret. It is the ID if that can be a name.
// Otherwise it is the valid part of the ID, with a hash that keeps different IDs apart. No other
// object of this package ends with these suffixes.
func objectName(id core.RuntimeID, suffix string) string {
	readable := strings.Trim(strings.Map(nameRune, strings.ToLower(string(id))), "-")
	if readable == string(id) {
		return readable + suffix
	}
	sum := sha256.Sum256([]byte(id))
	return strings.TrimLeft(readable+"-", "-") + hex.EncodeToString(sum[:])[:hashDigits] + suffix
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
		return fmt.Errorf("%w: its ID is empty", errInvalidRuntime)
	case len(id) > maxCommonName:
		return fmt.Errorf("%w: ID %.32q… has %d bytes, want at most %d: it is the Common Name (RFC 5280, ub-common-name)",
			errInvalidRuntime, string(id), len(id), maxCommonName)
	case strings.ContainsFunc(string(id), isUnprintable):
		return fmt.Errorf("%w: ID %q has characters that cannot be printed", errInvalidRuntime, string(id))
	default:
		return nil
	}
}

func isUnprintable(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }

// CheckService fails if the certificates of webhooks are not for a Service of that name in the
// runtimes.
func (c *Certificates) CheckService(service types.NamespacedName) error {
	if host := service.Name + "." + service.Namespace + ".svc"; !slices.Contains(c.opts.serviceNames(), host) {
		return fmt.Errorf("certificates: options Service %q and RuntimeNamespace %q: want those of the agent, %s",
			c.opts.Service, c.opts.RuntimeNamespace, service)
	}
	return nil
}

// checkDNSName accepts DNS names of hosts, and neither wildcards nor addresses.
func checkDNSName(name string) error {
	name = strings.TrimSuffix(name, ".")
	if _, err := netip.ParseAddr(name); err == nil || len(name) > maxDNSName ||
		len(validation.IsDNS1123Subdomain(strings.ToLower(name))) > 0 {
		return fmt.Errorf("want a DNS name, have %.300q", name)
	}
	return nil
}

// canonical is a DNS name as SAN pinning compares it: in lower case, without the dot at its end.
func canonical(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }
