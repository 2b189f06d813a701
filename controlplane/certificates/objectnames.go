package certificates

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/runtime-watcher/runtime-watcher/controlplane/names"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
)

const (
	fieldOwner = "runtime-watcher-certificates"

	// Labels and annotations are words here, which [objectNames.key] completes.
	//
	// labelSet has the name of the [Certificates] of an object, labelRole one of the roles.
	labelSet  = "certificates"
	labelRole = "certificate-role"

	roleCA      = "ca"
	roleServer  = "server"
	roleClient  = "runtime"
	roleWebhook = "webhook"

	labelGeneration = "ca-generation"
)

// Annotations of the clients' Issuer, with which a user controls and observes a rotation.
const (
	// annotationRotate requests a new CA whenever its value changes.
	annotationRotate = "rotate-ca"
	// annotationSwitchAnyway is the generation of a CA to which the server certificate switches
	// without waiting for the confirmation of all runtimes. The others are cut off until they get
	// the new bundle.
	annotationSwitchAnyway = "switch-anyway"
	// annotationRotation reports the progress of a rotation, and the runtimes that it waits for.
	annotationRotation = "rotation"
)

const (
	annotationRequest = "requested-by"
	// annotationBundleSince is the time at which the bundle got its youngest CA.
	annotationBundleSince = "bundle-since"
	// annotationImported is <namespace>/<name> of the Secret that a CA was copied from.
	annotationImported = "imported-from"
	// annotationAdditional lists the fingerprints of [Options.AdditionalCAs] in the bundle.
	annotationAdditional = "additional-cas"
	annotationRuntime    = "runtime-id"
	// annotationOwner is <namespace>/<name> of the object of a runtime, annotationOwnerUID its UID.
	annotationOwner    = "certificate-owner"
	annotationOwnerUID = "certificate-owner-uid"
)

const (
	// maxName leaves room for the suffixes in labels and in Common Names.
	maxName = 40
	// maxCommonName is the upper bound of RFC 5280, appendix A.1 (ub-common-name).
	maxCommonName = 64
	// maxDNSName leaves out the dot at the end (RFC 1035, section 2.3.4).
	maxDNSName = 253
	hashDigits = 10

	clientSuffix  = "-watcher-tls"
	webhookSuffix = "-webhook-tls"
)

// objectNames makes the names of the objects of one set, and of their labels and annotations. All
// files of this package use them.
type objectNames struct {
	set    string
	stored names.Names
}

func (n objectNames) key(word string) string { return n.stored.Key(word) }

func (n objectNames) label(object metav1.Object, word string) string {
	return object.GetLabels()[n.key(word)]
}

func (n objectNames) annotation(object metav1.Object, word string) string {
	return object.GetAnnotations()[n.key(word)]
}

// isInSet reports whether an object has the label of the set.
func (n objectNames) isInSet(object metav1.Object) bool { return n.label(object, labelSet) == n.set }

func (n objectNames) selfSigned() string { return n.set + "-selfsigned" }

func (n objectNames) clients() string { return n.set + "-clients" }

func (n objectNames) servers() string { return n.set + "-servers" }

func (n objectNames) server() string { return n.set + "-server" }

func (n objectNames) listener() string { return n.set + "-listener" }

func (n objectNames) authorityName(generation int) string {
	return n.set + "-ca-" + strconv.Itoa(generation)
}

func (n objectNames) validate() error {
	if errs := validation.IsDNS1123Label(n.set); len(errs) > 0 || len(n.set) > maxName {
		return fmt.Errorf("certificates: name %.64q: want a DNS-1123 label of at most %d characters", n.set, maxName)
	}
	return nil
}

// generationOf returns 0 for a name that is not exactly the name of a CA, such as a name with "+1"
// or "01".
func (n objectNames) generationOf(name string) int {
	text, _ := strings.CutPrefix(name, strings.TrimSuffix(n.authorityName(0), "0"))
	generation, _ := strconv.Atoi(text) // 0 if it is not a number.
	if generation <= 0 || name != n.authorityName(generation) {
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
	isLetter := r >= 'a' && r <= 'z'
	isDigit := r >= '0' && r <= '9'
	if isLetter || isDigit {
		return r
	}
	return '-'
}

func checkID(id core.RuntimeID) error {
	if err := option.RuntimeName(string(id)); err != nil {
		return fmt.Errorf("%w: %w", errInvalidRuntime, err)
	}
	if len(id) > maxCommonName {
		return fmt.Errorf("%w: ID %.32q… has %d bytes, want at most %d: it is the Common Name (RFC 5280, ub-common-name)",
			errInvalidRuntime, string(id), len(id), maxCommonName)
	}
	return nil
}

// certificateVersion begins with the owner. The status of a Certificate does not matter.
func (n objectNames) certificateVersion(meta *metav1.PartialObjectMetadata) string {
	return n.annotation(meta, annotationOwner) + " " + n.annotation(meta, annotationOwnerUID) + " " +
		string(meta.UID) + " " + strconv.FormatInt(meta.Generation, 10) + strconv.FormatBool(meta.DeletionTimestamp != nil)
}

func (n objectNames) requestVersion(meta *metav1.PartialObjectMetadata) string {
	return n.annotation(meta, annotationRotate) + "\n" + n.annotation(meta, annotationSwitchAnyway)
}
