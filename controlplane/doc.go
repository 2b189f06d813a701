// Package controlplane is the control plane's side of runtime watching. It converts Watcher
// resources to routes in the control plane and to watches in the runtimes.
package controlplane

//go:generate controller-gen object crd:crdVersions=v1,maxDescLen=400 paths=./api/... paths=./internal/v1beta1 output:crd:dir=config/crd
//go:generate controller-gen rbac:roleName=runtime-watcher-controlplane paths=./watcher paths=./runtimes output:rbac:dir=../deploy/controlplane
//go:generate controller-gen rbac:roleName=runtime-watcher-certificates paths=./certificates output:rbac:dir=../deploy/controlplane/certificates
