define void @matmul_0(ptr %args, i64 %task, ptr %scratch) nounwind {
entry:
  %v9 = getelementptr ptr, ptr %args, i64 0
  %v10 = load ptr, ptr %v9, align 8
  %v17 = getelementptr ptr, ptr %args, i64 1
  %v18 = load ptr, ptr %v17, align 8
  %v43 = getelementptr ptr, ptr %args, i64 2
  %v44 = load ptr, ptr %v43, align 8
  br label %loop1
loop1:
  %i_2 = phi i64 [ 0, %entry ], [ %i_2.next, %after4 ]
  %v11 = mul i64 %i_2, 400
  %v12 = getelementptr float, ptr %v10, i64 %v11
  br label %loop3
loop3:
  %k_4.4 = phi i64 [ 0, %loop1 ], [ %k_4.4.next, %loop3 ]
  %k_4.32 = phi i64 [ 0, %loop1 ], [ %k_4.32.next, %loop3 ]
  %v1 = phi <16 x float> [ zeroinitializer, %loop1 ], [ %v21, %loop3 ]
  %v2 = phi <16 x float> [ zeroinitializer, %loop1 ], [ %v24, %loop3 ]
  %v3 = phi <16 x float> [ zeroinitializer, %loop1 ], [ %v29, %loop3 ]
  %v4 = phi <16 x float> [ zeroinitializer, %loop1 ], [ %v30, %loop3 ]
  %v5 = phi <16 x float> [ zeroinitializer, %loop1 ], [ %v35, %loop3 ]
  %v6 = phi <16 x float> [ zeroinitializer, %loop1 ], [ %v36, %loop3 ]
  %v7 = phi <16 x float> [ zeroinitializer, %loop1 ], [ %v41, %loop3 ]
  %v8 = phi <16 x float> [ zeroinitializer, %loop1 ], [ %v42, %loop3 ]
  %v13 = getelementptr float, ptr %v12, i64 %k_4.4
  %v14 = load float, ptr %v13, align 4
  %v15 = insertelement <16 x float> poison, float %v14, i64 0
  %v16 = shufflevector <16 x float> %v15, <16 x float> poison, <16 x i32> zeroinitializer
  %v19 = getelementptr float, ptr %v18, i64 %k_4.32
  %v20 = load <16 x float>, ptr %v19, align 4
  %v21 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v16, <16 x float> %v20, <16 x float> %v1)
  %v22 = getelementptr float, ptr %v19, i64 16
  %v23 = load <16 x float>, ptr %v22, align 4
  %v24 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v16, <16 x float> %v23, <16 x float> %v2)
  %v25 = getelementptr float, ptr %v13, i64 1
  %v26 = load float, ptr %v25, align 4
  %v27 = insertelement <16 x float> poison, float %v26, i64 0
  %v28 = shufflevector <16 x float> %v27, <16 x float> poison, <16 x i32> zeroinitializer
  %v29 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v28, <16 x float> %v20, <16 x float> %v3)
  %v30 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v28, <16 x float> %v23, <16 x float> %v4)
  %v31 = getelementptr float, ptr %v13, i64 2
  %v32 = load float, ptr %v31, align 4
  %v33 = insertelement <16 x float> poison, float %v32, i64 0
  %v34 = shufflevector <16 x float> %v33, <16 x float> poison, <16 x i32> zeroinitializer
  %v35 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v34, <16 x float> %v20, <16 x float> %v5)
  %v36 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v34, <16 x float> %v23, <16 x float> %v6)
  %v37 = getelementptr float, ptr %v13, i64 3
  %v38 = load float, ptr %v37, align 4
  %v39 = insertelement <16 x float> poison, float %v38, i64 0
  %v40 = shufflevector <16 x float> %v39, <16 x float> poison, <16 x i32> zeroinitializer
  %v41 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v40, <16 x float> %v20, <16 x float> %v7)
  %v42 = call <16 x float> @llvm.fma.v16f32(<16 x float> %v40, <16 x float> %v23, <16 x float> %v8)
  %k_4.4.sum = add i64 %k_4.4, 4
  %k_4.4.next = freeze i64 %k_4.4.sum
  %k_4.32.sum = add i64 %k_4.32, 32
  %k_4.32.next = freeze i64 %k_4.32.sum
  %k_4.more = icmp ult i64 %k_4.4.next, 400
  br i1 %k_4.more, label %loop3, label %after4
after4:
  %v45 = mul i64 %i_2, 128
  %v46 = getelementptr float, ptr %v44, i64 %v45
  store <16 x float> %v21, ptr %v46, align 4
  %v47 = getelementptr float, ptr %v46, i64 16
  store <16 x float> %v24, ptr %v47, align 4
  %v48 = getelementptr float, ptr %v46, i64 32
  store <16 x float> %v29, ptr %v48, align 4
  %v49 = getelementptr float, ptr %v46, i64 48
  store <16 x float> %v30, ptr %v49, align 4
  %v50 = getelementptr float, ptr %v46, i64 64
  store <16 x float> %v35, ptr %v50, align 4
  %v51 = getelementptr float, ptr %v46, i64 80
  store <16 x float> %v36, ptr %v51, align 4
  %v52 = getelementptr float, ptr %v46, i64 96
  store <16 x float> %v41, ptr %v52, align 4
  %v53 = getelementptr float, ptr %v46, i64 112
  store <16 x float> %v42, ptr %v53, align 4
  %i_2.sum = add i64 %i_2, 1
  %i_2.next = freeze i64 %i_2.sum
  %i_2.more = icmp ult i64 %i_2.next, 2
  br i1 %i_2.more, label %loop1, label %after2
after2:
  ret void
}
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
