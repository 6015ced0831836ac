package deploy

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"

	"github.com/relavium/relavium-serve/workflows"
)

// kind returns an empty object of a kind that the examples use, or nil.
func kind(apiVersion, name string) any {
	switch apiVersion + " " + name {
	case "v1 Namespace":
		return new(corev1.Namespace)
	case "v1 ServiceAccount":
		return new(corev1.ServiceAccount)
	case "v1 ConfigMap":
		return new(corev1.ConfigMap)
	case "v1 Secret":
		return new(corev1.Secret)
	case "v1 Service":
		return new(corev1.Service)
	case "apps/v1 Deployment":
		return new(appsv1.Deployment)
	case "batch/v1 Job":
		return new(batchv1.Job)
	case "policy/v1 PodDisruptionBudget":
		return new(policyv1.PodDisruptionBudget)
	case "networking.k8s.io/v1 NetworkPolicy":
		return new(networkingv1.NetworkPolicy)
	case "networking.k8s.io/v1 Ingress":
		return new(networkingv1.Ingress)
	}
	return nil
}

// manifests decodes every document, refusing members that the API does not have and
// members that are there twice.
func manifests(t *testing.T) []any {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", "deploy", "kubernetes", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no manifests: %v", err)
	}
	var all []any
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, text := range bytes.Split(raw, []byte("\n---\n")) {
			where := fmt.Sprintf("%s, document %d", filepath.Base(file), i+1)
			var head struct{ APIVersion, Kind string }
			if err := yaml.Unmarshal(text, &head); err != nil {
				t.Fatalf("%s: %v", where, err)
			}
			object := kind(head.APIVersion, head.Kind)
			if object == nil {
				t.Errorf("%s: %q %q is no kind that this test knows", where, head.APIVersion, head.Kind)
				continue
			}
			if err := yaml.UnmarshalStrict(text, object, yaml.DisallowUnknownFields); err != nil {
				t.Errorf("%s: %v", where, err)
			}
			all = append(all, object)
		}
	}
	return all
}

// find returns the objects of one kind.
func find[T any](all []any) []T {
	var out []T
	for _, object := range all {
		if o, ok := object.(T); ok {
			out = append(out, o)
		}
	}
	return out
}

// TestManifests decodes the manifests as the API server does, and looks at what no schema
// knows: that pods may do nothing, that what they mount is there, and that names agree.
func TestManifests(t *testing.T) {
	t.Parallel()
	all := manifests(t)
	pods := map[string]*corev1.PodTemplateSpec{}
	for _, d := range find[*appsv1.Deployment](all) {
		pods[d.Name] = &d.Spec.Template
		if d.Spec.Replicas == nil || *d.Spec.Replicas < 2 {
			t.Errorf("%s: replicas = %v, want 2 at least", d.Name, d.Spec.Replicas)
		}
		for name, value := range d.Spec.Selector.MatchLabels {
			if got := d.Spec.Template.Labels[name]; got != value {
				t.Errorf("%s: its pods' label %s = %q, want %q", d.Name, name, got, value)
			}
		}
		checkProbes(t, d)
	}
	for _, j := range find[*batchv1.Job](all) {
		pods[j.Name] = &j.Spec.Template
	}
	if len(pods) < 2 {
		t.Fatalf("%d pod templates, want a deployment's and a job's", len(pods))
	}
	for name, pod := range pods {
		checkClosed(t, name, pod)
		checkMounts(t, name, pod, all)
	}

	loaded := 0
	for _, m := range find[*corev1.ConfigMap](all) {
		for file, text := range m.Data {
			if !strings.HasSuffix(file, ".relavium.yaml") {
				continue
			}
			loaded++
			if _, problems, err := workflows.Parse(file, []byte(text), workflows.Options{}); err != nil || len(problems) > 0 {
				t.Errorf("%s of %s: %v, %v", file, m.Name, problems, err)
			}
		}
	}
	if loaded == 0 {
		t.Error("the manifests have no workflow")
	}

	labels := func(match map[string]string) bool {
		for _, pod := range pods {
			if len(match) > 0 && subset(match, pod.Labels) {
				return true
			}
		}
		return false
	}
	for _, s := range find[*corev1.Service](all) {
		if !labels(s.Spec.Selector) {
			t.Errorf("service %s selects no pods", s.Name)
		}
	}
	budgets := find[*policyv1.PodDisruptionBudget](all)
	if len(budgets) != 1 || !labels(budgets[0].Spec.Selector.MatchLabels) {
		t.Errorf("%d budgets for disruption, want one that selects the replicas", len(budgets))
	}
	fenced := 0
	for _, p := range find[*networkingv1.NetworkPolicy](all) {
		if !labels(p.Spec.PodSelector.MatchLabels) {
			t.Errorf("network policy %s selects no pods", p.Name)
		}
		if slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeIngress) && slices.Contains(p.Spec.PolicyTypes, networkingv1.PolicyTypeEgress) {
			fenced++
		}
	}
	if fenced != len(pods) {
		t.Errorf("%d network policies for both directions, want one for each of %d kinds of pods", fenced, len(pods))
	}
}

func subset(part, whole map[string]string) bool {
	for name, value := range part {
		if whole[name] != value {
			return false
		}
	}
	return true
}

// checkProbes wants liveness by /healthz, readiness by /readyz, both under the name of
// public_url, which is the only one that is answered.
func checkProbes(t *testing.T, d *appsv1.Deployment) {
	t.Helper()
	for _, c := range d.Spec.Template.Spec.Containers {
		for path, probe := range map[string]*corev1.Probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
			if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != path ||
				!slices.Contains(probe.HTTPGet.HTTPHeaders, corev1.HTTPHeader{Name: "Host", Value: "flows.example"}) {
				t.Errorf("%s: the probe for %s = %+v, want that path and the public host", d.Name, path, probe)
			}
		}
	}
}

// checkClosed wants of a pod what the restricted profile of the Pod Security Standards
// asks for, a root that cannot be written, and no token for the API server.
func checkClosed(t *testing.T, name string, pod *corev1.PodTemplateSpec) {
	t.Helper()
	s := pod.Spec.SecurityContext
	yes, no := true, false
	if s == nil || !same(s.RunAsNonRoot, yes) || s.RunAsUser == nil || *s.RunAsUser == 0 || s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("%s: the pod's security context = %+v, want a numeric user and the default seccomp profile", name, s)
	}
	if !same(pod.Spec.AutomountServiceAccountToken, no) || pod.Spec.HostNetwork || pod.Spec.HostPID || pod.Spec.HostIPC {
		t.Errorf("%s: the pod has a token, or shares a namespace of the host", name)
	}
	for _, c := range pod.Spec.Containers {
		s := c.SecurityContext
		if s == nil || !same(s.AllowPrivilegeEscalation, no) || !same(s.ReadOnlyRootFilesystem, yes) || s.Capabilities == nil ||
			!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 || s.Privileged != nil {
			t.Errorf("%s: the container %s = %+v, want it closed", name, c.Name, s)
		}
		if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Memory().IsZero() {
			t.Errorf("%s: the container %s has no bound of its memory", name, c.Name)
		}
	}
}

func same(set *bool, want bool) bool { return set != nil && *set == want }

// checkMounts wants every mount to have a volume, every volume a source among the
// manifests, and every variable that names a mounted file the file.
func checkMounts(t *testing.T, name string, pod *corev1.PodTemplateSpec, all []any) {
	t.Helper()
	files := map[string][]string{} // of each volume
	for _, v := range pod.Spec.Volumes {
		files[v.Name] = nil
		switch {
		case v.EmptyDir != nil:
		case v.ConfigMap != nil:
			for _, m := range find[*corev1.ConfigMap](all) {
				if m.Name == v.ConfigMap.Name {
					for file := range m.Data {
						files[v.Name] = append(files[v.Name], file)
					}
				}
			}
		case v.Secret != nil:
			for _, s := range find[*corev1.Secret](all) {
				if s.Name == v.Secret.SecretName {
					for file := range s.StringData {
						files[v.Name] = append(files[v.Name], file)
					}
				}
			}
		}
		if v.EmptyDir == nil && len(files[v.Name]) == 0 {
			t.Errorf("%s: the volume %s has no source in the manifests", name, v.Name)
		}
	}
	for _, c := range pod.Spec.Containers {
		present := map[string]bool{}
		for _, m := range c.VolumeMounts {
			if _, ok := files[m.Name]; !ok {
				t.Errorf("%s: the mount %s has no volume", name, m.Name)
			}
			for _, file := range files[m.Name] {
				present[m.MountPath+"/"+file] = true
			}
		}
		for _, e := range c.Env {
			if strings.HasSuffix(e.Name, "_FILE") && !present[e.Value] {
				t.Errorf("%s: %s names %s, which is not mounted", name, e.Name, e.Value)
			}
		}
	}
}
