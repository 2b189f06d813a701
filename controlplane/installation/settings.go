package installation

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/internal/option"
	"github.com/runtime-watcher/runtime-watcher/internal/proxy"
	"github.com/runtime-watcher/runtime-watcher/internal/shared/connect"
)

// The environment variables of the agent that this package sets or reads.
const (
	settingControlPlane = "CONTROL_PLANE_ADDRESS"
	settingContract     = "CONTROL_PLANE_CONTRACT"
	formerContract      = "KCP_CONTRACT"
	settingFallback     = "CONTRACT_FALLBACK"
	settingTransport    = "TRANSPORT"
	settingProxy        = "CONTROL_PLANE_PROXY"
	// settingProxyCredentials is a file.
	settingProxyCredentials = "CONTROL_PLANE_PROXY_CREDENTIALS"
	// settingHTTPSProxy is the usual variable of the environment, which many programs read.
	settingHTTPSProxy         = "HTTPS_PROXY"
	settingManagers           = "MANAGERS"
	settingManagersFile       = "MANAGERS_FILE"
	settingCanary             = "CANARY_LEASE"
	settingConfiguration      = "WEBHOOK_CONFIGURATION"
	settingSource             = "SOURCE"
	settingWatchers           = "WATCHERS"
	settingExcluded           = "EXCLUDED_NAMESPACES"
	settingOwner              = "OWNER_ANNOTATION"
	settingServingCertificate = "WEBHOOK_TLS_CERT"
	settingServingKey         = "WEBHOOK_TLS_KEY"
)

// Values of settings.
const (
	transportHTTPS = "https"
	transportNATS  = "nats"
	contractV3     = "v3"
	proxyDirect    = "direct" // no proxy
)

const (
	// managersKey is the key of the ConfigMap with the managers, and the name of the file.
	managersKey   = "managers"
	managersMount = "/etc/runtime-watcher/managers"
)

// formerSettings are other names of settings, which the agents of kyma-project/runtime-watcher
// have.
var formerSettings = map[string]string{
	"KCP_ADDR":        settingControlPlane,
	formerContract:    settingContract,
	"KCP_SERVER_NAME": "CONTROL_PLANE_SERVER_NAME",
	"KCP_PROTOCOL":    "CONTROL_PLANE_PROTOCOL",
}

// reservedSettings belong to parameters of this package, and to the manifests, which set
// inManifests.
func reservedSettings(inManifests []string) map[string]bool {
	reserved := map[string]bool{
		settingControlPlane: true, settingManagersFile: true, settingCanary: true, settingConfiguration: true,
		settingSource: true, settingWatchers: true, settingExcluded: true, settingOwner: true,
		settingServingCertificate: true, settingServingKey: true,
	}

	for former, setting := range formerSettings {
		reserved[former] = reserved[setting]
	}
	for _, setting := range inManifests {
		reserved[setting] = true
	}
	return reserved
}

// settings are the environment variables of [Options.Settings].
type settings map[string]string

// validate refuses settings with which an agent does not start, and those that the agent would get
// twice.
func (s settings) validate(inManifests []string) error {
	name := regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`)
	reserved := reservedSettings(inManifests)

	var problems []error
	for _, setting := range slices.Sorted(maps.Keys(s)) {
		problems = append(problems, option.Unless(name.MatchString(setting) && !reserved[setting],
			"Settings: want settings of the agent that the manifests do not set, have %.80q", setting))

		now := formerSettings[setting]
		if other, isTwice := s[now]; isTwice {
			problems = append(problems, option.Unless(other == s[setting],
				"Settings: %s is %.80q and %s is %.80q: want one of them", now, other, setting, s[setting]))
		}
	}
	problems = append(problems, s.validateTransport(), s.validateProxy(), s.validateManagers())
	return errors.Join(problems...)
}

// validateTransport checks the settings of one transport together.
func (s settings) validateTransport() error {
	transport, isSet := s[settingTransport]
	contract, _ := s.contract()
	fallback := s[settingFallback]

	isKnown := !isSet || transport == transportHTTPS || transport == transportNATS
	if !s.overNATS() {
		return option.Unless(isKnown, "%s in Settings: want %s or %s, have %.80q",
			settingTransport, transportHTTPS, transportNATS, transport)
	}
	return errors.Join(
		option.Unless(contract == "" || contract == contractV3, "%s in Settings: want v3 with %s=%s, have %.80q",
			settingContract, settingTransport, transportNATS, contract),
		option.Unless(fallback == "", "%s in Settings: want none with %s=%s, have %.80q",
			settingFallback, settingTransport, transportNATS, fallback),
	)
}

func (s settings) validateProxy() error {
	text := s[settingProxy]
	if text == "" {
		return nil
	}
	if text == proxyDirect {
		return option.Unless(s[settingProxyCredentials] == "",
			"%s in Settings: want it only with a proxy", settingProxyCredentials)
	}

	parsed, err := proxy.Parse(text)
	if err != nil {
		return fmt.Errorf("%s in Settings: %w, or %s", settingProxy, err, proxyDirect)
	}
	if parsed.User != nil {
		return fmt.Errorf("%s in Settings: want no user, because each reader of the Deployment sees it", settingProxy)
	}
	return nil
}

// validateManagers refuses an invalid name: an agent with one keeps its last list.
func (s settings) validateManagers() error {
	var problems []error
	for _, manager := range s.managers() {
		if _, err := core.ParseManager(string(manager)); err != nil {
			problems = append(problems, fmt.Errorf("%s in Settings: %w", settingManagers, err))
		}
	}
	return errors.Join(problems...)
}

// managers are the managers in MANAGERS, in their order there.
func (s settings) managers() (managers []core.Manager) {
	for name := range strings.SplitSeq(s[settingManagers], ",") {
		name = strings.TrimSpace(name)
		if name != "" {
			managers = append(managers, core.Manager(name))
		}
	}
	return managers
}

// contract returns the contract, which may have its former name.
func (s settings) contract() (contract string, isSet bool) {
	for _, setting := range []string{settingContract, formerContract} {
		contract, isSet = s[setting]
		if isSet {
			return contract, true
		}
	}
	return "", false
}

func (s settings) overNATS() bool { return s[settingTransport] == transportNATS }

// wayOut returns the ports on the path to the control plane: the port of the proxy, or of the
// address, which was validated. With HTTPS_PROXY there are both, because NO_PROXY decides.
func (s settings) wayOut(address string) []int32 {
	own, _ := parsePort(address)
	text := s[settingProxy]
	if text != "" {
		port, isProxy := portOf(proxy.Parse(text))
		if isProxy {
			return []int32{port}
		}
		return []int32{own}
	}

	port, isProxy := portOf(proxy.ParseEnvironment(s[settingHTTPSProxy]))
	if isProxy && port != own {
		return []int32{own, port}
	}
	return []int32{own}
}

func portOf(parsed *url.URL, err error) (port int32, isProxy bool) {
	if err != nil {
		return 0, false
	}
	number, err := strconv.ParseInt(parsed.Port(), 10, 32)
	return int32(number), err == nil
}

func parsePort(address string) (int32, error) {
	_, port, err := parseAddress(address)
	return port, err
}

// parseAddress returns <host>:<port> in the form that the agent has, and the port.
func parseAddress(address string) (string, int32, error) {
	parsed, err := connect.ParseAddress(address)
	if err != nil {
		return "", 0, fmt.Errorf("address of the control plane: want <host>:<port>, have %w", err)
	}

	port, err := strconv.ParseInt(parsed.Port(), 10, 32)
	if err != nil || strings.Contains(address, "://") {
		return "", 0, fmt.Errorf("address of the control plane: want <host>:<port>, have %.200q", address)
	}
	return parsed.Host, int32(port), nil
}
