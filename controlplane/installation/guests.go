package installation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/runtime-watcher/runtime-watcher/controlplane/internal/remote"
)

const (
	// guestPage bounds one list. The objects that a platform adds to each namespace are fewer.
	guestPage = 100
	// mostVersions and mostKinds bound the requests of one check. Large clusters have 150 versions
	// of groups, and 600 kinds with a namespace.
	mostVersions = 500
	mostKinds    = 2000
	// guestTimeout bounds one check. An aggregated API may be slow, or not answer.
	guestTimeout = time.Minute
)

// documentReader is a client that reads any document of an API server. The mapper of a client knows
// the kinds of this package only.
type documentReader interface {
	ReadJSON(ctx context.Context, path string, into any) error
}

var errNoDocuments = errors.New("client of the runtime cannot list the kinds of the API server: " +
	"want one of runtimes.NewKubeconfigs or remote.NewClient")

// FindGuest returns the kind and the name of an object that would be deleted with its namespace. It
// returns "" for a namespace without such an object. Objects that Kubernetes creates in each
// namespace do not count, and neither do objects that are deleted with their controller. If skip is
// not nil, it excludes further objects.
//
// The client must come from package runtimes or remote, because these clients can read kinds that
// their mapper does not know. FindGuest fails if a kind that may have objects there cannot be
// listed.
func FindGuest(
	ctx context.Context, c client.Client, namespace string,
	skip func(kind string, object *metav1.PartialObjectMetadata) bool,
) (string, error) {
	reader, ok := c.(documentReader)
	if !ok {
		return "", errNoDocuments
	}
	ctx, cancel := context.WithTimeout(ctx, guestTimeout)
	defer cancel()

	kinds, err := guestKinds(ctx, reader)
	if err != nil {
		return "", err
	}
	inNamespace := ownersIn(kinds)
	leaves := func(kind string, object *metav1.PartialObjectMetadata) bool {
		isSkipped := skip != nil && skip(kind, object)
		return isSkipped || endsItself(object, inNamespace)
	}
	for _, kind := range kinds {
		guest, err := guestOf(ctx, reader, kind, namespace, leaves)
		if err != nil && ctx.Err() == nil {
			// The definition of a kind may have ended since the discovery, and its objects with it.
			err = errorIfServed(ctx, reader, kind, err)
		}
		if err != nil || guest != "" {
			return guest, err
		}
	}

	return "", nil
}

// guestKind is a kind of objects that end with their namespace.
type guestKind struct {
	path string // of its version, such as /apis/apps/v1
	metav1.APIResource
}

// guestKinds returns the kinds of all groups, including custom resources and aggregated APIs. Each
// kind is listed in one version only, as all versions have the same objects.
func guestKinds(ctx context.Context, reader documentReader) ([]guestKind, error) {
	paths, err := versionPaths(ctx, reader)
	if err != nil {
		return nil, err
	}

	var kinds []guestKind
	known := make(map[string]bool)
	for _, path := range paths {
		resources, err := kindsAt(ctx, reader, path)
		if err != nil {
			return nil, err
		}
		for _, resource := range resources {
			identity := groupOf(path) + "/" + resource.Name
			if mayHaveGuests(path, resource) && !known[identity] {
				known[identity] = true
				kinds = append(kinds, guestKind{path, resource})
			}
		}
	}

	if len(kinds) > mostKinds {
		return nil, fmt.Errorf("the API server has %d kinds, and at most %d are checked", len(kinds), mostKinds)
	}
	return kinds, nil
}

// versionPaths returns the paths of the versions of all groups.
func versionPaths(ctx context.Context, reader documentReader) ([]string, error) {
	groups := &metav1.APIGroupList{}
	if err := reader.ReadJSON(ctx, "/apis", groups); err != nil {
		return nil, fmt.Errorf("list the groups of the API server: %w", err)
	}
	if groups.Kind != "APIGroupList" {
		return nil, fmt.Errorf("list the groups of the API server: want an APIGroupList, have %.80q", groups.Kind)
	}

	paths := []string{"/api/v1"}
	for _, group := range groups.Groups {
		for _, version := range group.Versions {
			paths = append(paths, "/apis/"+version.GroupVersion)
		}
	}
	if len(paths) > mostVersions {
		return nil, fmt.Errorf("the API server has %d versions of groups, and at most %d are checked",
			len(paths), mostVersions)
	}
	return paths, nil
}

// kindsAt returns the kinds of one version of a group, none if that version has ended since the
// groups were listed, as with its last definition.
func kindsAt(ctx context.Context, reader documentReader, path string) ([]metav1.APIResource, error) {
	resources := &metav1.APIResourceList{}
	if err := reader.ReadJSON(ctx, path, resources); err != nil {
		paths, pathsErr := versionPaths(ctx, reader)
		if ctx.Err() == nil && pathsErr == nil && !slices.Contains(paths, path) {
			return nil, nil // The version has ended.
		}

		return nil, fmt.Errorf("list the kinds of %.200s: %w", path, err)
	}
	if resources.Kind != "APIResourceList" {
		return nil, fmt.Errorf("list the kinds of %.200s: want an APIResourceList, have %.80q", path, resources.Kind)
	}
	return resources.APIResources, nil
}

// errorIfServed asks the group of a kind again after a failed list. It returns the error of the
// list, nil if the API server no longer serves the kind.
func errorIfServed(ctx context.Context, reader documentReader, kind guestKind, failed error) error {
	resources, err := kindsAt(ctx, reader, kind.path)
	isServed := slices.ContainsFunc(resources, func(r metav1.APIResource) bool { return r.Name == kind.Name })
	if err == nil && !isServed {
		return nil
	}
	return failed
}

func groupOf(path string) string { return path[:strings.LastIndex(path, "/")] }

// mayHaveGuests leaves out objects that Kubernetes makes from other objects, and kinds that are
// computed, such as the metrics of pods, which cannot be deleted.
func mayHaveGuests(path string, resource metav1.APIResource) bool {
	isSubresource := strings.Contains(resource.Name, "/")
	if isSubresource || isDerived(path, resource.Name) {
		return false
	}
	return resource.Namespaced && slices.Contains(resource.Verbs, "delete")
}

// isDerived is true for objects that Kubernetes makes from other objects.
func isDerived(path, resource string) bool {
	switch resource {
	case "events":
		return path == "/api/v1" || groupOf(path) == "/apis/events.k8s.io"
	case "endpoints":
		return path == "/api/v1"
	default:
		return false
	}
}

// ownersIn returns the kinds of the objects in a namespace, with their groups.
func ownersIn(kinds []guestKind) map[schema.GroupKind]bool {
	owners := make(map[schema.GroupKind]bool)
	for _, kind := range kinds {
		group := ""
		if of, isNamed := strings.CutPrefix(groupOf(kind.path), "/apis/"); isNamed {
			group = of
		}
		owners[schema.GroupKind{Group: group, Kind: kind.Kind}] = true
	}
	return owners
}

// guestOf returns kind and name of an object of one kind, unless skip leaves it out.
func guestOf(
	ctx context.Context, reader documentReader, kind guestKind, namespace string,
	skip func(kind string, object *metav1.PartialObjectMetadata) bool,
) (string, error) {
	list := &metav1.PartialObjectMetadataList{}
	path := kind.path + "/namespaces/" + namespace + "/" + kind.Name + "?limit=" + strconv.Itoa(guestPage)
	if err := reader.ReadJSON(ctx, path, list); err != nil {
		return "", fmt.Errorf("list objects of kind %.200s: %w", kind.Kind, err)
	}
	if !strings.HasSuffix(list.Kind, "List") {
		return "", fmt.Errorf("list objects of kind %.200s: want a list, have %.80q", kind.Kind, list.Kind)
	}

	for n := range list.Items {
		item := &list.Items[n]
		if !skip(kind.Kind, item) && !isOfPlatform(kind.Kind, item) {
			return remote.TextOf(kind.Kind+" "+item.Name, remote.MaxNote), nil
		}
	}

	if list.Continue != "" {
		return remote.TextOf("more than a page of "+kind.Kind, remote.MaxNote), nil
	}
	return "", nil
}

// endsItself reports whether an object is about to end, or ends with its controller in the
// namespace, which is listed itself. The object of a cluster-wide controller is a guest, because
// nothing else in the namespace shows that it is needed.
func endsItself(object *metav1.PartialObjectMetadata, inNamespace map[schema.GroupKind]bool) bool {
	if object.DeletionTimestamp != nil {
		return true
	}

	controller := metav1.GetControllerOf(object)
	if controller == nil {
		return false
	}
	kind := schema.FromAPIVersionAndKind(controller.APIVersion, controller.Kind)
	return inNamespace[kind.GroupKind()]
}

// isOfPlatform reports whether Kubernetes, OpenShift or Istio adds such an object to each
// namespace.
func isOfPlatform(kind string, object *metav1.PartialObjectMetadata) bool {
	accounts := []string{"default", "builder", "deployer"}
	bundles := []string{"kube-root-ca.crt", "openshift-service-ca.crt", "istio-ca-root-cert"}

	switch kind {
	case "ConfigMap":
		return slices.Contains(bundles, object.Name)
	case "ServiceAccount":
		return slices.Contains(accounts, object.Name)
	case "Secret":
		return slices.Contains(accounts, object.Annotations["kubernetes.io/service-account.name"])
	case "EndpointSlice": // It belongs to a Service, which is listed itself.
		return object.Labels["kubernetes.io/service-name"] != ""
	case "RoleBinding":
		return strings.HasPrefix(object.Name, "system:")
	default:
		return false
	}
}
